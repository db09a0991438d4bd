"""Horovod's functions that record a part of the program."""

from __future__ import annotations

from pathlib import Path

from bluecomm.runtime import current_process

__all__ = ["start_timeline", "stop_timeline"]


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Begin a timeline of the events of rank 0, which ``stop_timeline`` writes.

    It shows how long rank 0 waited for each other rank. ``bfrun --timeline-filename``
    makes a timeline of all ranks. If a timeline has begun before, it is written first.
    On ranks other than 0 the call does nothing.

    Args:
        file_path: The file.
        mark_cycles: Ignored, because bluecomm has no cycles as Horovod has.

    Raises:
        NotInitializedError: ``init`` has not been called.
        ValueError: No events are recorded: ``BLUECOMM_TIMELINE`` must be ``DYNAMIC``.
        OSError: The folder of the file does not exist, or an earlier timeline cannot be
            written.
    """
    process = current_process()
    rank = process.communicator.rank
    recording = process.recording
    if recording is None or recording.recorder is None:
        raise ValueError(
            f"start_timeline on rank {rank}: no events are recorded; set "
            "BLUECOMM_TIMELINE=DYNAMIC before bluecomm.init"
        )
    folder = Path(file_path).absolute().parent
    if not folder.is_dir():
        raise FileNotFoundError(f"start_timeline: folder '{folder}' does not exist")
    if rank == 0:
        recording.begin_excerpt(Path(file_path))


def stop_timeline() -> None:
    """Write the timeline that ``start_timeline`` has begun, if there is one.

    The file is complete afterwards. Waits at most 10 s for CUDA devices to finish what
    bluecomm has begun on them. ``shutdown`` does the same.

    Raises:
        NotInitializedError: ``init`` has not been called.
        OSError: The file cannot be written.
    """
    process = current_process()
    if process.communicator.rank == 0 and process.recording is not None:
        process.recording.end_excerpt()
