"""A dataset that loads each sample once and then reads it from a cache."""

from __future__ import annotations

import json
import math
import operator
import time
import warnings
import weakref
from collections.abc import Mapping
from typing import Any

from torch.utils.data import Dataset

from bluecomm.data.shared_count import SharedCount
from bluecomm.data.stores.names import make_store
from bluecomm.data.stores.store import MISSING, SampleStore
from bluecomm.data.world import data_world

# A store that failed is tried again after this time.
_PAUSE_S = 30.0
# The stores of datasets. The keys of a store are those of one dataset.
_in_use: weakref.WeakSet[SampleStore] = weakref.WeakSet()


class CachedDataset(Dataset[Any]):
    """The samples of another dataset, each loaded once.

    ::

        dataset = bf.data.CachedDataset(images, store="memory", budget=8 << 30)

    The first epoch loads; later ones read the cache. Put random augmentation behind
    the cache, because a cached sample is always the same. A sample may be written to:
    the cache does not change.

    All ranks make it at the same point of the program; see ``data_world``. Workers of
    a ``DataLoader`` share the cache of their rank.

    Args:
        dataset: Map-style dataset. If it has a method ``fingerprint()``, another
            result, a dictionary that JSON can hold, means another dataset.
        store: ``"memory"``, ``"cluster"``, ``"lmdb"``, ``"redis"``, or a
            ``SampleStore``.
        version: Text to change when samples change and nothing else tells.
        **options: Options of the store, such as ``budget``.

    Attributes:
        hits: Samples that this process has read from the cache.
        misses: Samples that this process has loaded.

    Raises:
        ValueError: No store has this name, another dataset uses the store, or the
            ranks' datasets differ.
        TypeError: The dataset has no length, or the store has no such option.
        ImportError: The package of the store is not installed.
        NotInitializedError: ``"cluster"`` needs ``bluecomm.init()``.
    """

    def __init__(
        self,
        dataset: Dataset[Any],
        store: str | SampleStore = "memory",
        *,
        version: str = "",
        **options: Any,
    ) -> None:
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise TypeError(
                "CachedDataset: expected a map-style dataset, with __len__ and "
                f"__getitem__, got {type(dataset).__name__}"
            )
        self._dataset = dataset
        self._length = len(dataset)
        self._store = make_store(store, options)
        if self._store in _in_use:
            raise ValueError(
                "CachedDataset: another dataset uses this store, and would get the "
                "samples of this one; make a store for each dataset"
            )
        self.hits = self.misses = 0
        self._failures = SharedCount()
        self._no_reads_until = 0.0
        self._no_writes_until = 0.0
        kind = type(dataset)
        identity = {
            "class": f"{kind.__module__}.{kind.__qualname__}",
            "length": self._length,
            "version": version,
            "fingerprint": self.fingerprint(),
        }
        facts = json.dumps(identity, sort_keys=True)
        self._is_open = False
        try:
            self._store.open(data_world(), self._length, facts)
        except OSError as error:
            self._no_reads_until = self._no_writes_until = math.inf
            self._report("cannot open the store", error)
        else:
            self._is_open = True
            _in_use.add(self._store)

    @property
    def failures(self) -> int:
        """Calls of the store that failed in this process and its workers.

        The first one is reported as a warning.
        """
        return self._failures.value

    def fingerprint(self) -> Mapping[str, Any]:
        """Return the fingerprint of the dataset, or an empty one."""
        own = getattr(self._dataset, "fingerprint", dict)
        result: Mapping[str, Any] = own()
        return result

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._length

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            IndexError: There is no sample of this number.
        """
        key = operator.index(index)
        if not -self._length <= key < self._length:
            raise IndexError(
                f"CachedDataset: sample {key} does not exist; there are {self._length}"
            )
        key %= self._length
        value = self._read(key)
        if value is not MISSING:
            return value
        if time.monotonic() < self._no_reads_until:
            # A server that does not answer would make the lock wait for each sample.
            return self._load(key)
        with self._store.loading(key):
            # Another process may have loaded it meanwhile.
            value = self._read(key)
            return self._load(key) if value is MISSING else value

    def _read(self, key: int) -> Any:
        if time.monotonic() < self._no_reads_until:
            return MISSING
        try:
            value = self._store.get(key)
        except ValueError as error:
            self._report(f"cannot decode sample {key}", error)
            return MISSING
        except OSError as error:
            self._no_reads_until = time.monotonic() + _PAUSE_S
            self._report("cannot read the store", error)
            return MISSING
        self.hits += value is not MISSING
        return value

    def _load(self, key: int) -> Any:
        begin = time.perf_counter()
        value = self._dataset[key]
        cost_s = time.perf_counter() - begin
        self.misses += 1
        if time.monotonic() >= max(self._no_reads_until, self._no_writes_until):
            try:
                self._store.put(key, value, cost_s)
            except OSError as error:
                self._no_writes_until = time.monotonic() + _PAUSE_S
                self._report("cannot write to the store", error)
            except (TypeError, ValueError, RecursionError) as error:
                self._report(f"cannot keep sample {key}", error)
        return value

    def _report(self, what: str, error: Exception) -> None:
        """Warn of the first failure."""
        if self._failures.add():
            reason = str(error).rstrip(".")
            warnings.warn(
                f"CachedDataset: {what}: {reason}. Training goes on, and such samples "
                "are loaded each time; later failures are counted in `failures`",
                stacklevel=4,
            )

    def close(self) -> None:
        """Release the store. The dataset cannot be used any more."""
        if self._is_open:
            self._is_open = False
            self._store.close()
            _in_use.discard(self._store)
