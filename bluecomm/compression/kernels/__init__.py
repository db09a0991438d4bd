"""Loops over values, compiled by Numba."""
