"""A cache in an LMDB file, which outlives the job."""

from __future__ import annotations

import contextlib
import hashlib
import os
import warnings
from collections.abc import Iterator
from typing import Any

from bluecomm.data.stores.byte_locks import ByteLocks
from bluecomm.data.stores.flat_value import decode_value, encode_value
from bluecomm.data.stores.store import MISSING, SampleStore
from bluecomm.data.world import DataWorld, check_same
from bluecomm.required_package import require_package

_FINGERPRINT = b"fingerprint"
# LMDB itself waits for other writers without a limit.
_WRITER = 0
_FIRST_KEY = 1
_WRITE_LIMIT_S = 5.0
_LOADING_LIMIT_S = 60.0
_READERS = 1024


class LmdbStore(SampleStore):
    """Values in an LMDB file, for the next epochs and the next jobs.

    The processes of a machine share it. Use a local file system, and a folder per
    dataset: opening it for another dataset drops the values.

    Values that LMDB reads from the file are unpickled if they are not plain, so nobody
    else may be able to write to the folder.

    Args:
        path: Folder of the file, which is made.
        budget: Largest size of the file in bytes. When it is full, no more samples are
            kept.

    Raises:
        ImportError: lmdb is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], budget: int = 64 << 30) -> None:
        require_package("lmdb", "1.4", "LmdbStore")
        self._path = os.fspath(path)
        self._budget = budget
        self._prefix = b""
        self._pid = -1
        self._environment: Any = None
        self._locks: ByteLocks | None = None

    def open(self, world: DataWorld, length: int, fingerprint: str) -> None:
        """See ``SampleStore``."""
        facts = {"length": length, "fingerprint": fingerprint}
        check_same(world, "LmdbStore", facts)
        digest = hashlib.sha256(fingerprint.encode()).digest()
        self._prefix = digest[:16]
        with _as_os_error(self._path), self._writing() as transaction:
            if transaction.get(_FINGERPRINT) not in (None, digest):
                dropped = transaction.stat()["entries"] - 1
                warnings.warn(
                    f"LmdbStore: {self._path} has {dropped} values of another dataset, "
                    "or of an earlier state of this one, which are dropped; use a "
                    "folder per dataset",
                    stacklevel=4,
                )
                transaction.drop(self._environment.open_db(txn=transaction), False)
            transaction.put(_FINGERPRINT, digest)

    def get(self, key: int) -> Any:
        """See ``SampleStore``."""
        # Not in _as_os_error, which takes a tenth of the time of a small value.
        try:
            self._reopen_in_fork()
            with self._environment.begin(buffers=True) as transaction:
                found = transaction.get(self._name(key))
                if found is None:
                    return MISSING
                # The buffer ends with the transaction.
                memory = memoryview(bytearray(found))
        except _lmdb_error() as error:
            raise OSError(f"LMDB in {self._path}: {error}") from error
        return decode_value(memory)

    def put(self, key: int, value: Any, cost_s: float) -> None:
        """See ``SampleStore``."""
        data = b"".join(map(bytes, encode_value(value)))
        with _as_os_error(self._path), self._writing() as transaction:
            transaction.put(self._name(key), data, overwrite=False)

    @contextlib.contextmanager
    def loading(self, key: int) -> Iterator[None]:
        """See ``SampleStore``; among processes, not among threads."""
        self._reopen_in_fork()
        locks = self._locks
        byte = _FIRST_KEY + key
        is_locked = locks is not None and locks.lock(byte, _LOADING_LIMIT_S)
        try:
            yield
        finally:
            if is_locked and locks is not None:
                locks.unlock(byte)

    def close(self) -> None:
        """See ``SampleStore``."""
        if self._pid == os.getpid():
            self._environment.close()
            if self._locks is not None:
                self._locks.close()
        self._pid = -1
        self._environment = self._locks = None

    def _name(self, key: int) -> bytes:
        return self._prefix + key.to_bytes(8, "big")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[Any]:
        """Hold the only transaction that writes."""
        self._reopen_in_fork()
        assert self._locks is not None
        if not self._locks.lock(_WRITER, _WRITE_LIMIT_S):
            raise TimeoutError(
                f"another process has written to {self._path} for "
                f"{_WRITE_LIMIT_S:g} s; look for a stopped one"
            )
        try:
            with self._environment.begin(write=True) as transaction:
                yield transaction
        finally:
            self._locks.unlock(_WRITER)

    def _reopen_in_fork(self) -> None:
        """Open the file, also in a fork, which must not use its parent's."""
        if self._pid == os.getpid():
            return
        import lmdb

        if self._environment is not None:
            # Closes the fork's copies of descriptors only. lmdb refuses to open a file
            # twice in a process, and counts the parent's.
            self._environment.close()
            self._environment = None
        if self._locks is not None:
            self._locks.close()
            self._locks = None
        os.makedirs(self._path, exist_ok=True)
        lock = os.open(
            os.path.join(self._path, "bluecomm.lock"),
            os.O_RDWR | os.O_CREAT | os.O_CLOEXEC,
            0o600,
        )
        try:
            locks = ByteLocks(lock)
        finally:
            os.close(lock)
        try:
            self._environment = lmdb.open(
                self._path,
                map_size=self._budget,
                max_readers=_READERS,
                readahead=False,
                # After a crash of the machine, the last values may be missing.
                metasync=False,
            )
        except BaseException:
            locks.close()
            raise
        self._locks = locks
        self._pid = os.getpid()

    def __getstate__(self) -> dict[str, Any]:
        """Let a process that is started by this one open the file itself."""
        return self.__dict__ | {"_pid": -1, "_environment": None, "_locks": None}


def _lmdb_error() -> type[Exception]:
    """Return the class of LMDB's errors."""
    import lmdb

    error: type[Exception] = lmdb.Error
    return error


@contextlib.contextmanager
def _as_os_error(path: str) -> Iterator[None]:
    """Turn errors of LMDB into OSError."""
    try:
        yield
    except _lmdb_error() as error:
        raise OSError(f"LMDB in {path}: {error}") from error
