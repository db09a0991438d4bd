"""Centralized and decentralized data-parallel training for PyTorch.

::

    import bluecomm as bf

    bf.init()
    optimizer = bf.DistributedOptimizer(
        optimizer, model, algorithm="neighbor_allreduce"
    )

In scripts written for BlueFog, replace ``import bluefog.torch as bf`` by this import or
by ``import bluecomm.torch as bf``. In scripts written for Horovod, replace ``import
horovod.torch as hvd`` by ``import bluecomm.compat.horovod as hvd``.
"""

# Each module lists its public names in `__all__`, and a star import re-exports them.
# Type checkers must not see the computed `__all__` below: they would take it for empty.

import types
import typing

from bluecomm import data as data
from bluecomm import elastic as elastic
from bluecomm import topology as topology
from bluecomm import topology_util as topology_util
from bluecomm._version import __version__ as __version__
from bluecomm.active_topology import *
from bluecomm.basics import *
from bluecomm.basics import ProcessSet
from bluecomm.compat.bluefog import *
from bluecomm.compat.horovod_names import *
from bluecomm.compat.topology_util import *
from bluecomm.compression import Compression as Compression
from bluecomm.errors import *
from bluecomm.nn.sync_batch_norm import *
from bluecomm.ops.allgather import *
from bluecomm.ops.allreduce import *
from bluecomm.ops.alltoall import *
from bluecomm.ops.barrier import *
from bluecomm.ops.batch import *
from bluecomm.ops.broadcast import *
from bluecomm.ops.compressed_allreduce import *
from bluecomm.ops.gather import *
from bluecomm.ops.grouped_allgather import *
from bluecomm.ops.grouped_allreduce import *
from bluecomm.ops.grouped_reducescatter import *
from bluecomm.ops.handles import *
from bluecomm.ops.hierarchical_neighbor_allreduce import *
from bluecomm.ops.infer_peers import *
from bluecomm.ops.monitored_barrier import *
from bluecomm.ops.neighbor_allgather import *
from bluecomm.ops.neighbor_allreduce import *
from bluecomm.ops.objects import *
from bluecomm.ops.pair_gossip import *
from bluecomm.ops.recv import *
from bluecomm.ops.reduce import *
from bluecomm.ops.reduce_op import *
from bluecomm.ops.reducescatter import *
from bluecomm.ops.scatter import *
from bluecomm.ops.send import *
from bluecomm.ops.share_memory import *
from bluecomm.ops.sparse_allreduce import *
from bluecomm.ops.tensor import *
from bluecomm.optim import *
from bluecomm.optim.factories import *
from bluecomm.optim.fused.fuse import *
from bluecomm.optim.join import *
from bluecomm.optim.local_parameters import *
from bluecomm.optim.model_average import *
from bluecomm.optim.optimizer_state import *
from bluecomm.optim.options import CommunicationType as CommunicationType
from bluecomm.optim.parameters import *
from bluecomm.runtime import Handle as Handle
from bluecomm.runtime.stats import *
from bluecomm.timeline import *
from bluecomm.torch_backend.ddp_comm_hook import *
from bluecomm.window.associated_p import *
from bluecomm.window.creation import *
from bluecomm.window.get import *
from bluecomm.window.handles import *
from bluecomm.window.mutex import *
from bluecomm.window.put import *
from bluecomm.window.update import *
from bluecomm_autoload import register as _register_torch_backend

Communicator = ProcessSet

_register_torch_backend()

if not typing.TYPE_CHECKING:
    __all__ = sorted(
        {
            name
            for name, value in globals().items()
            if not name.startswith("_") and not isinstance(value, types.ModuleType)
        }
        | {"__version__", "data", "elastic", "topology", "topology_util"}
    )

    def __dir__() -> list[str]:
        """Return the public names only, for shells that complete names."""
        return __all__
