"""Converts datasets into RecordIO or tar files."""

from __future__ import annotations

import importlib
import itertools
import os
from collections.abc import Iterable, Iterator
from typing import Any

from bluecomm.data.recordio.dataset import RecordIODataset
from bluecomm.data.recordio.writer import RecordIOWriter
from bluecomm.data.tar.dataset import TarDataset
from bluecomm.data.tar.writer import TarWriter


def open_source(name: str) -> Iterable[Any]:
    """Return the samples of a source in order.

    Args:
        name: A ``.tar`` file, ``MODULE:FUNCTION`` of a function that returns a
            map-style or iterable dataset, or a RecordIO file.

    Raises:
        ValueError: The module has no such function.
        ImportError: The module cannot be imported.
        CorruptedFileError: The file is damaged.
        OSError: The file cannot be read.
    """
    if name.endswith(".tar"):
        return in_order(TarDataset(name))
    module, colon, function = name.partition(":")
    if not colon or os.path.exists(name):
        return in_order(RecordIODataset(name))
    make = getattr(importlib.import_module(module), function, None)
    if not callable(make):
        raise ValueError(
            f"module {module} has no function {function!r}; name one that returns a "
            "dataset"
        )
    return in_order(make())


def in_order(dataset: Any) -> Iterator[Any]:
    """Yield the samples of a map-style or iterable dataset."""
    if hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__"):
        return (dataset[i] for i in range(len(dataset)))
    return iter(dataset)


def convert(
    sources: Iterable[str],
    target: str,
    *,
    field: str = "bin",
    compressor: str = "none",
    chunk_nbytes: int = 1 << 20,
) -> int:
    """Write the samples of sources into a file.

    Args:
        sources: See ``open_source``.
        target: A tar file if its name ends with ``.tar``, else a RecordIO file.
        field: Extension of the field that becomes, or comes from, the bytes of a
            record.
        compressor: See ``RecordIOWriter``.
        chunk_nbytes: See ``RecordIOWriter``.

    Returns:
        The number of samples.

    Raises:
        TypeError: A sample does not fit the target.
        ValueError: A sample has no such field, or as by ``open_source``.
    """
    samples = itertools.chain.from_iterable(map(open_source, sources))
    number = -1
    if target.endswith(".tar"):
        with TarWriter(target) as archive:
            for number, sample in enumerate(samples):
                archive.write(*_key_and_fields(sample, number, field))
    else:
        with RecordIOWriter(
            target, compressor=compressor, chunk_nbytes=chunk_nbytes
        ) as writer:
            for number, sample in enumerate(samples):
                writer.write(_record(sample, number, field))
    return number + 1


def _key_and_fields(
    sample: Any, number: int, field: str
) -> tuple[str, dict[str, bytes]]:
    if isinstance(sample, bytes):
        return f"{number:09d}", {field: sample}
    _check_fields(sample, number)
    fields = {name: data for name, data in sample.items() if name != "__key__"}
    return str(sample.get("__key__", f"{number:09d}")), fields


def _record(sample: Any, number: int, field: str) -> bytes:
    if isinstance(sample, bytes):
        return sample
    _check_fields(sample, number)
    if field not in sample:
        raise ValueError(
            f"sample {number} has no field {field!r}; choose one of its fields "
            f"{', '.join(name for name in sample if name != '__key__')}"
        )
    record: bytes = sample[field]
    return record


def _check_fields(sample: Any, number: int) -> None:
    """Raise TypeError unless the sample is a dictionary of bytes."""
    if not isinstance(sample, dict) or not all(
        isinstance(data, bytes) or name == "__key__" for name, data in sample.items()
    ):
        raise TypeError(
            f"sample {number} has type {type(sample).__name__}; a file holds bytes, or "
            "dictionaries of bytes: let the dataset encode its samples, for example "
            "with pickle.dumps"
        )
