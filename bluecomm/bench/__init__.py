"""Measures bluecomm on your machines, and its peers in the same run.

::

    bfrun -np 4 python -m bluecomm.bench ops
"""
