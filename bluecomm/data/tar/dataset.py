"""Tar files in the layout of WebDataset as a map-style dataset."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable
from typing import Any, Literal

from torch.utils.data import Dataset

from bluecomm.data.corrupted_file import CorruptedFileError
from bluecomm.data.file_names import FileNames, file_names
from bluecomm.data.tar.sample_index import SampleLocation, scan_tar


class TarDataset(Dataset[Any]):
    """The samples of tar files, by number.

    The headers of all files are read at the start. Then each sample is read by its
    location, in any order.

    Args:
        paths: A file, or files in the order of their samples. They must not be
            compressed, because compressed files cannot be read by location.
        decode: Called with a sample, a dictionary from extension to bytes with its key
            under ``"__key__"``. Default: the dictionary is the sample.
        on_corrupt: ``"raise"``, or ``"skip"``: the samples from the damage of a file
            to its end are left out, and ``damage`` lists it. Tar files have checksums
            of their headers only, so changed content is not noticed.

    Attributes:
        damage: The errors of the files that ``"skip"`` cut.

    Raises:
        ValueError: ``on_corrupt`` has another value, or there is no file.
        CorruptedFileError: A file is damaged, truncated or compressed.
        OSError: A file cannot be read.
    """

    def __init__(
        self,
        paths: FileNames,
        *,
        decode: Callable[[dict[str, Any]], Any] | None = None,
        on_corrupt: Literal["raise", "skip"] = "raise",
    ) -> None:
        if on_corrupt not in ("raise", "skip"):
            raise ValueError(
                f"TarDataset: on_corrupt must be 'raise' or 'skip', got {on_corrupt!r}"
            )
        self.damage: list[CorruptedFileError] = []
        self._decode = decode
        self._samples: list[tuple[str, SampleLocation]] = []
        self._fingerprint: dict[str, list[int]] = {}
        for name in file_names(paths, "TarDataset"):
            samples, damage = scan_tar(name)
            if damage is not None and on_corrupt == "raise":
                raise damage
            self.damage += [] if damage is None else [damage]
            self._samples += [(name, sample) for sample in samples]
            self._fingerprint[name] = [os.stat(name).st_size, len(samples)]

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._samples)

    def __getitem__(self, index: int) -> Any:
        """Return a sample.

        Raises:
            IndexError: There is no sample of this number.
            CorruptedFileError: The file has become shorter.
        """
        number = operator.index(index)
        if not -len(self) <= number < len(self):
            raise IndexError(
                f"TarDataset: sample {number} does not exist; there are {len(self)}"
            )
        path, location = self._samples[number]
        sample: dict[str, Any] = {"__key__": location.key}
        with open(path, "rb") as file:
            for extension, (offset, nbytes) in location.fields.items():
                # A single call of the kernel reads at most 2 GiB.
                file.seek(offset)
                data = file.read(nbytes)
                if len(data) < nbytes:
                    raise CorruptedFileError(
                        path,
                        offset,
                        f"file .{extension} of sample {location.key!r} has {nbytes} "
                        f"bytes, and only {len(data)} are left",
                        "make the dataset again",
                    )
                sample[extension] = data
        return sample if self._decode is None else self._decode(sample)

    def fingerprint(self) -> dict[str, list[int]]:
        """Return the size in bytes and the number of samples of each file."""
        return dict(self._fingerprint)
