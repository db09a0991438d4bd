"""The world of a process: rendezvous, the engine, communicators and handles."""

from bluecomm.runtime.communicator import Communicator
from bluecomm.runtime.handle import Handle
from bluecomm.runtime.parameters import parameters
from bluecomm.runtime.process import current_communicator, current_process

__all__ = [
    "Communicator",
    "Handle",
    "current_communicator",
    "current_process",
    "parameters",
]
