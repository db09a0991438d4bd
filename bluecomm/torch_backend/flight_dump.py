"""Writes the latest calls of a rank, for torch's ``torchfrtrace`` and for people.

As with torch's own backends, ``TORCH_FR_DUMP_TEMP_FILE`` asks for it: it has the first
part of the files' names. When a call fails, the rank writes a pickle that
``torchfrtrace FOLDER`` reads, and a JSON, whose name does not end with the rank, so
that ``torchfrtrace`` leaves it alone.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import CodeType
from typing import Any

from bluecomm.torch_backend.flight_record import Entry, FlightRecord

_log = logging.getLogger("bluecomm")

# torch's present and former names of its variables.
_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_LENGTH = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_DEFAULT_LENGTH = 2000
# Version of torch's format.
_FORMAT = "2.10"
# torchfrtrace knows the operations of a fixed list of backends only.
_BACKEND = "gloo"
_NAMES = {
    "all_gather_coalesced": "ALLGATHER_coalesced",
    "all_gather_single": "_all_gather_base",
    "all_gather_single_coalesced": "all_gather_into_tensor_coalesced",
    "all_reduce_coalesced": "allreduce_coalesced",
    "all_to_all_single": "all_to_all",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
}


def asked_for(environ: Mapping[str, str], rank: int) -> FlightRecord | None:
    """Return the record of this process, or None if the user has not asked for one.

    Args:
        environ: Environment of this process.
        rank: This rank in the world.
    """
    prefix = _first(_FILE, environ)
    length = _first(_LENGTH, environ)
    kept = int(length) if length.isdecimal() else _DEFAULT_LENGTH
    if not prefix or not kept:
        return None
    if rank not in _records:
        _records[rank] = FlightRecord(rank, kept, lambda record: write(record, prefix))
    return _records[rank]


# The groups of a process share its record. It has another rank in a later world.
_records: dict[int, FlightRecord] = {}


def _first(names: Sequence[str], environ: Mapping[str, str]) -> str:
    return next((environ[name] for name in names if environ.get(name)), "")


def write(record: FlightRecord, prefix: str) -> None:
    """Write both files; a warning says why one cannot be written.

    Args:
        record: Calls of this rank.
        prefix: First part of the pickle's name; the rank is the rest.
    """
    target = Path(f"{prefix}{record.rank}")
    text = json.dumps(_for_people(record), indent=1)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _replace(target, pickle.dumps(_for_torch(record)))
        _replace(target.with_name(f"bluecomm-{record.rank}.json"), text.encode())
    except OSError as error:
        _log.warning(
            "rank %d cannot write its flight record to %s: %s",
            record.rank,
            target,
            error.strerror,
        )
    else:
        _log.warning(
            "rank %d wrote its latest calls to %s, for torchfrtrace, and to "
            "bluecomm-%d.json beside it",
            record.rank,
            target,
            record.rank,
        )


def _replace(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read, at once as a whole."""
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(fd, "wb") as file:
        file.write(content)
    draft.replace(path)


def _for_torch(record: FlightRecord) -> dict[str, Any]:
    groups = {
        name: {"name": name, "desc": description, "ranks": str(list(ranks))}
        for name, (description, ranks) in record.groups.copy().items()
    }
    entries = [_torch_entry(record, entry) for entry in list(record.entries)]
    for entry in list(record.messages):
        assert entry.message is not None
        source, destination, tag = entry.message
        if source is None:
            continue
        # torch's tool expects that all ranks of a group take part in each of its calls,
        # in one order. So the messages between two ranks with a tag are a group.
        name = f"{entry.group}: rank {source} to {destination}, tag {tag}"
        description = record.groups[entry.group][0]
        ends = sorted({source, destination})
        groups[name] = {"name": name, "desc": description, "ranks": str(ends)}
        entries.append(
            {
                **_torch_entry(record, entry),
                "process_group": (name, description),
                "p2p_seq_id": entry.sequence,
                "profiling_name": f"{_BACKEND}:{_arrow(entry, source, destination)}",
                "is_p2p": True,
            }
        )
    return {
        "version": _FORMAT,
        "comm_lib_version": "",
        "pg_config": groups,
        "pg_status": {},
        "entries": sorted(entries, key=lambda entry: entry["record_id"]),
    }


def _arrow(entry: Entry, source: int, destination: int) -> str:
    """Return a send or a receive as torch's tool reads it, which counts both ranks."""
    first = int(source > destination)
    second = int(destination > source)
    if entry.operation == "send":
        return f"send {first}->{second}"
    return f"recv {second}<-{first}"


def _torch_entry(record: FlightRecord, entry: Entry) -> dict[str, Any]:
    has_ended = entry.end_ns is not None
    operation = _NAMES.get(entry.operation, entry.operation)
    # A refused call has no shapes, but torch's tool computes with the first one.
    inputs, outputs = entry.inputs or [(0,)], entry.outputs or [(0,)]
    return {
        "record_id": entry.number,
        "pg_id": list(record.groups).index(entry.group),
        "process_group": (entry.group, record.groups[entry.group][0]),
        "collective_seq_id": entry.sequence,
        "p2p_seq_id": 0,
        "op_id": entry.sequence,
        "profiling_name": f"{_BACKEND}:{operation}",
        "time_created_ns": entry.begin_ns,
        "time_discovered_started_ns": entry.begin_ns,
        "time_discovered_completed_ns": entry.end_ns,
        "input_sizes": [list(shape) for shape in inputs],
        "input_dtypes": entry.dtypes,
        "output_sizes": [list(shape) for shape in outputs],
        "output_dtypes": entry.dtypes,
        "state": "completed" if has_ended else "started",
        "retired": has_ended,
        "is_p2p": False,
        "frames": [
            {"name": code.co_name, "filename": code.co_filename, "line": line}
            for code, line in entry.frames
        ],
    }


def _for_people(record: FlightRecord) -> dict[str, Any]:
    return {
        "rank": record.rank,
        "groups": {
            name: {"description": description, "ranks": list(ranks)}
            for name, (description, ranks) in record.groups.copy().items()
        },
        "collectives": [_people_entry(entry) for entry in list(record.entries)],
        "messages": [_people_entry(entry) for entry in list(record.messages)],
    }


def _people_entry(entry: Entry) -> dict[str, Any]:
    took_s = None if entry.end_ns is None else (entry.end_ns - entry.begin_ns) / 1e9
    return {
        "number": entry.sequence,
        "operation": entry.operation,
        **(entry.message._asdict() if entry.message else {}),
        "group": entry.group,
        "inputs": entry.inputs,
        "outputs": entry.outputs,
        "dtypes": entry.dtypes,
        "began_at_s": entry.begin_ns / 1e9,
        "took_s": took_s,
        "error": entry.error,
        "called_at": _where(entry.frames),
    }


def _where(frames: Sequence[tuple[CodeType, int]]) -> list[str]:
    return [f"{code.co_filename}:{line} {code.co_name}" for code, line in frames]
