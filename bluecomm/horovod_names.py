"""Horovod's spellings of the nonblocking operations."""

from bluecomm.ops.allgather import allgather_nonblocking
from bluecomm.ops.allreduce import (
    allreduce_nonblocking,
    allreduce_nonblocking_,
)
from bluecomm.ops.alltoall import alltoall_nonblocking
from bluecomm.ops.broadcast import broadcast_nonblocking, broadcast_nonblocking_
from bluecomm.ops.grouped_allreduce import grouped_allreduce_nonblocking
from bluecomm.ops.reducescatter import reducescatter_nonblocking

allgather_async = allgather_nonblocking
allreduce_async = allreduce_nonblocking
allreduce_async_ = allreduce_nonblocking_
alltoall_async = alltoall_nonblocking
broadcast_async = broadcast_nonblocking
broadcast_async_ = broadcast_nonblocking_
grouped_allreduce_async = grouped_allreduce_nonblocking
reducescatter_async = reducescatter_nonblocking
