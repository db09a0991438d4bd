"""Kernels of ``numba.cuda`` for operations."""
