"""Measures the operations on the machines at hand, beside a peer in the same run.

::

    bfrun -np 4 python -m bluecomm.bench
"""
