"""Makes a store from its name and options."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bluecomm.data.stores.cluster.cluster_store import ClusterStore
from bluecomm.data.stores.lmdb_store import LmdbStore
from bluecomm.data.stores.memory.memory_store import MemoryStore
from bluecomm.data.stores.redis_store import RedisStore
from bluecomm.data.stores.store import SampleStore

STORES: dict[str, Callable[..., SampleStore]] = {
    "memory": MemoryStore,
    "cluster": ClusterStore,
    "lmdb": LmdbStore,
    "redis": RedisStore,
}


def make_store(store: str | SampleStore, options: dict[str, Any]) -> SampleStore:
    """Return a store.

    Args:
        store: Its name, or the store itself.
        options: Options for a store that is named.

    Raises:
        ValueError: No store has this name.
        TypeError: The store has no such option, or options come with a store that
            exists already.
    """
    if isinstance(store, SampleStore):
        if options:
            raise TypeError(
                f"CachedDataset: pass {', '.join(sorted(options))} to the store itself"
            )
        return store
    if store not in STORES:
        raise ValueError(
            f"CachedDataset: there is no store {store!r}; use one of "
            f"{', '.join(STORES)}"
        )
    return STORES[store](**options)
