"""A cache in a Redis server, which several machines share."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from typing import Any

from bluecomm.data.stores.flat_value import decode_value, encode_value
from bluecomm.data.stores.store import MISSING, SampleStore
from bluecomm.data.world import DataWorld, check_same
from bluecomm.required_package import require_package

# A lock of a process that was killed ends after this time.
_LOADING_LIMIT_S = 30.0


class RedisStore(SampleStore):
    """Values in a Redis server that the site runs.

    bluecomm starts no server. The server's ``maxmemory`` is the budget, and its
    ``maxmemory-policy`` says what is evicted.

    Args:
        url: ``redis://:PASSWORD@HOST:PORT/DATABASE``, or ``rediss://`` for TLS.
        prefix: Beginning of the keys in the server.
        allow_pickle: Whether values may be pickled. Unpickling runs code that the
            server names, so allow it only if nobody else can write to the server.
            Without it, samples of tensors, arrays, bytes, numbers and text, in lists,
            tuples and dictionaries, are kept.
        timeout_s: Seconds that one call of the server may take.

    Raises:
        ImportError: redis is not installed.
        ValueError: The URL is wrong.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str = "bluecomm",
        allow_pickle: bool = False,
        timeout_s: float = 5.0,
    ) -> None:
        require_package("redis", "5.0", "RedisStore")
        self._url = url
        self._prefix = prefix
        self._allow_pickle = allow_pickle
        self._timeout_s = timeout_s
        self._client = self._connect()

    def _connect(self) -> Any:
        import redis

        # A client opens its connections when they are needed, and anew in a fork.
        return redis.Redis.from_url(
            self._url,
            socket_timeout=self._timeout_s,
            socket_connect_timeout=self._timeout_s,
        )

    def open(self, world: DataWorld, length: int, fingerprint: str) -> None:
        """See ``SampleStore``. The first access tells if the server is missing."""
        facts = {"length": length, "fingerprint": fingerprint}
        check_same(world, "RedisStore", facts)
        digest = hashlib.sha256(fingerprint.encode()).hexdigest()
        self._prefix = f"{self._prefix}:{digest[:32]}"

    def get(self, key: int) -> Any:
        """See ``SampleStore``.

        Raises:
            OSError: The server cannot be reached, or refuses.
            ValueError: A value is pickled, and must not be.
        """
        with _as_os_error():
            data = self._client.get(f"{self._prefix}:{key}")
        if data is None:
            return MISSING
        memory = memoryview(bytearray(data))
        return decode_value(memory, allow_pickle=self._allow_pickle)

    def put(self, key: int, value: Any, cost_s: float) -> None:
        """See ``SampleStore``."""
        parts = encode_value(value, allow_pickle=self._allow_pickle)
        with _as_os_error():
            self._client.set(f"{self._prefix}:{key}", b"".join(map(bytes, parts)))

    @contextlib.contextmanager
    def loading(self, key: int) -> Iterator[None]:
        """See ``SampleStore``; on all machines. Loads of 30 s and more may overlap."""
        import redis

        lock = self._client.lock(
            f"{self._prefix}:{key}:loading",
            timeout=_LOADING_LIMIT_S,
            blocking_timeout=_LOADING_LIMIT_S,
            sleep=0.01,
        )
        is_locked = False
        with contextlib.suppress(redis.RedisError):
            is_locked = lock.acquire()
        try:
            yield
        finally:
            if is_locked:
                with contextlib.suppress(redis.RedisError):
                    lock.release()

    def close(self) -> None:
        """See ``SampleStore``."""
        self._client.close()

    def __getstate__(self) -> dict[str, Any]:
        """Let a process that is started by this one connect itself."""
        state = dict(self.__dict__)
        del state["_client"]
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Connect at the first use."""
        self.__dict__.update(state)
        self._client = self._connect()


@contextlib.contextmanager
def _as_os_error() -> Iterator[None]:
    """Turn errors of Redis into OSError."""
    import redis

    try:
        yield
    except redis.RedisError as error:
        raise OSError(f"Redis: {error}") from error
