"""Loops over values, compiled by Numba for CPUs and for CUDA."""
