"""The available memory of a machine or a container."""

from __future__ import annotations

from pathlib import Path

import pytest

from bluecomm.bench.memory import free_memory

MIB = 1 << 20


def write(folder: Path, **texts: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / name.replace("memory_", "memory.")).write_text(f"{text}\n")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """A machine with 100 MiB of free memory."""
    meminfo = "MemTotal: 4194304 kB\nMemAvailable: 102400 kB"
    write(tmp_path / "proc", meminfo=meminfo)
    return tmp_path / "proc"


def free(proc: Path, groups: str) -> int:
    write(proc / "self", cgroup=groups)
    return free_memory(proc, proc.parent / "cgroup")


def limit(folder: Path, most: object) -> None:
    """Limit a group that uses 30 MiB, 10 of them for cached files."""
    stat = f"anon {20 * MIB}\ninactive_file {10 * MIB}"
    write(folder, memory_max=most, memory_current=30 * MIB, memory_stat=stat)


def test_without_limits_the_memory_of_the_machine_counts(proc: Path) -> None:
    limit(proc.parent / "cgroup" / "user", "max")
    assert free(proc, "0::/user") == 100 * MIB
    limit(proc.parent / "cgroup" / "user", 1 << 40)
    assert free(proc, "0::/user") == 100 * MIB


def test_the_smallest_limit_counts(proc: Path) -> None:
    group = proc.parent / "cgroup" / "pod" / "rank"
    limit(group, "max")
    limit(group.parent, 50 * MIB)
    assert free(proc, "0::/pod/rank") == 30 * MIB
    limit(group, 25 * MIB)
    assert free(proc, "0::/pod/rank") == 5 * MIB
    limit(group, 15 * MIB)
    assert free(proc, "0::/pod/rank") == 0


def test_a_container_that_does_not_see_its_path(proc: Path) -> None:
    limit(proc.parent / "cgroup", 60 * MIB)
    assert free(proc, "0::/docker/0123") == 40 * MIB


def test_groups_of_version_1(proc: Path) -> None:
    write(
        proc.parent / "cgroup" / "memory" / "a",
        memory_limit_in_bytes=64 * MIB,
        memory_usage_in_bytes=14 * MIB,
        memory_stat=f"total_inactive_file {4 * MIB}",
    )
    assert free(proc, "5:cpu:/a\n4:memory:/a\n0::/") == 54 * MIB


def test_this_machine_has_free_memory() -> None:
    assert free_memory() > MIB
