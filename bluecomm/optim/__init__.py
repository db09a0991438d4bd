"""Distributed optimizers: buckets, algorithms, and helpers for the parameters."""

# Importing the package registers the algorithms.
from bluecomm.optim import algorithms as algorithms
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.distributed_optimizer import DistributedOptimizer
from bluecomm.optim.registry import algorithm_names, register_algorithm

__all__ = [
    "Algorithm",
    "Bucket",
    "DistributedOptimizer",
    "algorithm_names",
    "register_algorithm",
]
