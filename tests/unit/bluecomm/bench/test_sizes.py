"""Sizes on the command line."""

from __future__ import annotations

import pytest

from bluecomm.bench.sizes import parse_size, parse_sizes, readable_size


@pytest.mark.parametrize(
    ("text", "nbytes", "readable"),
    [
        ("4", 4, "4 B"),
        ("64K", 64 << 10, "64 KiB"),
        ("3m", 3 << 20, "3 MiB"),
        ("2G", 2 << 30, "2 GiB"),
        ("1025", 1025, "1025 B"),
        ("0.25M", 256 << 10, "256 KiB"),
        ("1.5k", 1536, "1536 B"),
        ("0.1K", 102, "102 B"),
    ],
)
def test_sizes(text: str, nbytes: int, readable: str) -> None:
    assert parse_size(text) == nbytes
    assert readable_size(nbytes) == readable
    assert parse_sizes(text) == [nbytes]


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("4..64", [4, 16, 64]),
        ("4..65", [4, 16, 64]),
        ("16K..1M", [16 << 10, 64 << 10, 256 << 10, 1 << 20]),
        ("8..8", [8]),
    ],
)
def test_ranges(text: str, sizes: list[int]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize(
    "text",
    ["", "0", "K", "-4", "1.5", ".5M", "1.M", "0.0001K", "4T", "1e3", "4..", "..4"],
)
def test_wrong_sizes_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="size must be like"):
        parse_sizes(text)


def test_a_range_ascends() -> None:
    with pytest.raises(ValueError, match=r"must ascend, got '8\.\.4'"):
        parse_sizes("8..4")
