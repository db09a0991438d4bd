"""Writes tar files in the layout of WebDataset."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Mapping

from bluecomm.data.whole_file import WholeFileWriter


class TarWriter(WholeFileWriter):
    """Writes samples, each as adjacent files that share a key.

    ::

        with TarWriter("train-000.tar") as writer:
            writer.write("0001", {"jpg": image, "cls": b"7"})

    The file appears under its name when the ``with`` block ends without an error.

    Args:
        path: The file.

    Raises:
        OSError: The file cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._last_key = ""
        self._archive = tarfile.open(self._unfinished, "w")  # noqa: SIM115

    def write(self, key: str, fields: Mapping[str, bytes]) -> None:
        """Append a sample.

        Args:
            key: Its key: a path without a dot in its last part.
            fields: Extension to bytes.

        Raises:
            ValueError: The key is empty, has a dot, or is that of the sample before;
                there is no field; or an extension is empty or has a slash.
        """
        if not key or "." in key.rpartition("/")[2] or key.endswith("/"):
            raise ValueError(
                f"TarWriter: a key has no dot in its last part, and is not empty, got "
                f"{key!r}; readers end the key at the first dot"
            )
        if key == self._last_key:
            raise ValueError(
                f"TarWriter: {key!r} is also the key of the sample before; readers "
                "would take both for one sample"
            )
        if not fields or any(not name or "/" in name for name in fields):
            raise ValueError(
                f"TarWriter: sample {key!r} needs fields whose extensions are not "
                f"empty and have no slash, got {sorted(fields)}"
            )
        for extension, data in fields.items():
            member = tarfile.TarInfo(f"{key}.{extension}")
            member.size = len(data)
            self._archive.addfile(member, io.BytesIO(data))
        self._last_key = key

    def _write_rest(self) -> None:
        self._archive.close()

    def _close_file(self) -> None:
        self._archive.close()
