"""Data for many ranks: each sample once per epoch, and equally many batches everywhere.

The parts use torch's own ``Dataset``, ``Sampler`` and ``DataLoader``, and work in a job
of bluecomm as well as in one that uses only ``torch.distributed``. docs/data.md says
which class is for what.
"""

from bluecomm.data.cached_dataset import CachedDataset
from bluecomm.data.corrupted_file import CorruptedFileError
from bluecomm.data.distributed_batch_sampler import DistributedBatchSampler
from bluecomm.data.load_balancing import (
    LoadBalancingBatchSampler,
    LoadBalancingSampler,
)
from bluecomm.data.loader import DataLoader
from bluecomm.data.recordio.dataset import RecordIODataset
from bluecomm.data.recordio.writer import RecordIOWriter
from bluecomm.data.stores.cluster.cluster_store import ClusterStore
from bluecomm.data.stores.lmdb_store import LmdbStore
from bluecomm.data.stores.memory.memory_store import MemoryStore
from bluecomm.data.stores.redis_store import RedisStore
from bluecomm.data.stores.store import SampleStore
from bluecomm.data.tar.dataset import TarDataset
from bluecomm.data.tar.writer import TarWriter

__all__ = [
    "CachedDataset",
    "ClusterStore",
    "CorruptedFileError",
    "DataLoader",
    "DistributedBatchSampler",
    "LmdbStore",
    "LoadBalancingBatchSampler",
    "LoadBalancingSampler",
    "MemoryStore",
    "RecordIODataset",
    "RecordIOWriter",
    "RedisStore",
    "SampleStore",
    "TarDataset",
    "TarWriter",
]
