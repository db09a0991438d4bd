"""Distributed optimizers: buckets, algorithms, and helpers for the parameters."""

from bluecomm.optim import algorithms as _algorithms  # noqa: F401  registers them
