"""Distributed optimizers: buckets, algorithms, and helpers for the parameters."""

# Importing the package registers the algorithms.
from bluecomm.optim import algorithms as algorithms
from bluecomm.optim.algorithm import Algorithm, Round
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.distributed_optimizer import DistributedOptimizer
from bluecomm.optim.muon import muon_groups
from bluecomm.optim.qadam import QAdam
from bluecomm.optim.registry import algorithm_names, register_algorithm

__all__ = [
    "Algorithm",
    "Bucket",
    "DistributedOptimizer",
    "QAdam",
    "Round",
    "algorithm_names",
    "muon_groups",
    "register_algorithm",
]
