"""The output of ranks, from the frames of their agents to the printer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from bfrun.agent.output_ring import LIMIT_NBYTES
from bfrun.channel import text_to_bytes
from bfrun.driver.frame_router import FrameRouter
from bfrun.frames.agent_to_driver import Output, OutputClosed, OutputLost
from bfrun.frames.frame import Frame
from bfrun.output.printer import Printer
from bfrun.wording import count


class RankOutput:
    """Passes the output of ranks on to the printer.

    Args:
        printer: Shows it.
        router: Notes how much has arrived, which agents are told once it is shown.
        has_closed: Called with a rank whose output has ended.
    """

    def __init__(
        self, printer: Printer, router: FrameRouter, has_closed: Callable[[int], None]
    ) -> None:
        self._printer = printer
        self._router = router
        self._has_closed = has_closed
        self.handlers: dict[type[Frame], Callable[[Any], None]] = {
            Output: self._on_output,
            OutputClosed: self._on_closed,
            OutputLost: self._on_lost,
        }

    def end_lines(self, rank: int) -> None:
        """Show the last line of each stream of a rank, even if it is incomplete."""
        for stream in ("stdout", "stderr"):
            self._printer.feed(rank, stream, b"")

    def _on_output(self, frame: Output) -> None:
        data = text_to_bytes(frame.data)
        self._router.note_arrived(frame.rank, len(data))
        self._printer.feed(frame.rank, frame.stream, data)

    def _on_closed(self, frame: OutputClosed) -> None:
        self.end_lines(frame.rank)
        self._has_closed(frame.rank)

    def _on_lost(self, frame: OutputLost) -> None:
        self._printer.say(
            f"bfrun: {count(frame.nbytes, 'byte')} of the output of rank {frame.rank} "
            "were lost, because its agent keeps only the last "
            f"{LIMIT_NBYTES >> 20} MiB without a bfrun"
        )
