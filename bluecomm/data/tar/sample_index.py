"""Finds the samples of a tar file: their keys, and where their fields lie."""

from __future__ import annotations

import re
import tarfile
from typing import BinaryIO, NamedTuple

from bluecomm.data.corrupted_file import CorruptedFileError

_REMEDY = "write the file again, or read it with on_corrupt='skip'"
# The path up to the first dot of the file's name, and what follows it.
_MEMBER = re.compile(r"((?:.*/)?[^./]+)\.([^/]+)", re.DOTALL)


class Field(NamedTuple):
    """Where the bytes of a field are in the file."""

    offset: int
    nbytes: int


class SampleLocation(NamedTuple):
    """Where a sample is in its file.

    Attributes:
        key: The path that its fields share.
        fields: Extension to location.
    """

    key: str
    fields: dict[str, Field]


def scan_tar(path: str) -> tuple[list[SampleLocation], CorruptedFileError | None]:
    """Return the samples of a file, and the damage behind the last one, if any.

    Reads the headers only: the format has no checksum of its files' content. Folders,
    links and files without an extension are ignored. Before damage, the last sample is
    left out, because some of its files may be missing.
    """
    samples: list[SampleLocation] = []
    with open(path, "rb") as file:
        try:
            _collect(file, samples)
        except (tarfile.TarError, ValueError) as error:
            # At most the end of the header that cannot be read.
            at = max(0, file.tell() - tarfile.BLOCKSIZE)
            reason = f"this is no intact tar file without compression ({error})"
            return samples[:-1], CorruptedFileError(path, at, reason, _REMEDY)
    return samples, None


def _collect(file: BinaryIO, samples: list[SampleLocation]) -> None:
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            matched = _MEMBER.fullmatch(member.name)
            if not member.isreg() or matched is None:
                continue
            key, extension = matched.groups()
            if member.issparse():
                raise ValueError(
                    f"{member.name!r} is stored with holes, which are not read; "
                    "write it without tar's --sparse"
                )
            if not samples or samples[-1].key != key:
                samples.append(SampleLocation(key, {}))
            fields = samples[-1].fields
            if extension in fields:
                raise ValueError(f"sample {key!r} has two files .{extension}")
            fields[extension] = Field(member.offset_data, member.size)
        # tarfile takes a damaged header for the end.
        file.seek(archive.offset)
        end = file.read(tarfile.BLOCKSIZE)
        if end != bytes(tarfile.BLOCKSIZE):
            raise ValueError("neither a header nor the empty block of its end follows")
