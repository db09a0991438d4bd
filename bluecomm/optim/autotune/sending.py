"""The settings of links over TCP, which hold for all operations of a process."""

from __future__ import annotations

import weakref
from typing import Any

from bluecomm.optim.autotune.space import Setting
from bluecomm.runtime import Communicator
from bluecomm.runtime.world import World

MAX_STREAMS = "max_streams"
CHUNK_BYTES = "chunk_bytes"

# The streams that a link opens if it decides itself, and the most that it may have.
_AUTO_STREAMS, _MOST_STREAMS = 8, 16
_FEWER_STREAMS = (1, 2, 4, 8)
_CHUNKS = (32 << 10, 64 << 10, 128 << 10, 256 << 10)

# A process has one set of links for all optimizers of a world, so the search of one of
# them chooses. It is the first one that all ranks make, which they all know.
_chosen: weakref.WeakSet[World] = weakref.WeakSet()


def sending_choices(comm: Communicator) -> dict[str, list[int | str]]:
    """Return the values of each option of links; the last one is the default.

    There are none if no link over TCP leads to another machine, and none for a second
    optimizer of the world.

    Args:
        comm: Ranks that take part. All of them call this.
    """
    world = comm.world
    reaches_by_tcp = comm.machine_size > 1 and any(
        world.transport_of(rank) == "tcp" for rank in comm.ranks
    )
    if not (comm.is_world and reaches_by_tcp) or world in _chosen:
        return {}
    _chosen.add(world)
    most = world.config.tcp_stream_count or _AUTO_STREAMS
    choices: dict[str, list[int | str]] = {CHUNK_BYTES: [*_CHUNKS, "auto"]}
    if most > 1:
        fewer = [count for count in _FEWER_STREAMS if count < most]
        choices[MAX_STREAMS] = [*fewer, most]
    return choices


class Sending:
    """Applies settings to the links of this process.

    If a search ends without a decision, because its optimizer is gone, the links go on
    with their own settings.

    Args:
        world: The world with the links.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._reset: weakref.finalize[..., Sending] | None = None

    def apply(self, setting: Setting) -> None:
        """Let links send as a setting says, if it says anything about them."""
        if CHUNK_BYTES in setting:
            if self._reset is None:
                # Only a search that has changed the links may reset them.
                self._reset = weakref.finalize(
                    self, _limit, self._world, _MOST_STREAMS, 0
                )
                self._reset.atexit = False
            streams = int(setting.get(MAX_STREAMS, _MOST_STREAMS))
            chunk = setting[CHUNK_BYTES]
            _limit(self._world, streams, 0 if chunk == "auto" else int(chunk))

    def keep(self) -> None:
        """Let what was applied last hold for good."""
        if self._reset is not None:
            self._reset.detach()


def _limit(world: World, streams: int, chunk_nbytes: int) -> None:
    world.limit_sending(streams, chunk_nbytes)


def without_sending(setting: Setting) -> dict[str, Any]:
    """Return the options of a setting that belong to the optimizer."""
    return {
        option: value
        for option, value in setting.items()
        if option not in (MAX_STREAMS, CHUNK_BYTES)
    }
