"""Distributed optimizers: buckets, algorithms, and helpers for the parameters."""

# Imported for what they register.
from bluecomm.optim import algorithms as algorithms
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.bucket import Bucket
from bluecomm.optim.registry import algorithm_names, register_algorithm
from bluecomm.optim.wrapper import DistributedOptimizer

__all__ = [
    "Algorithm",
    "Bucket",
    "DistributedOptimizer",
    "algorithm_names",
    "register_algorithm",
]
