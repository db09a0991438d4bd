"""Ranks that use bluecomm and ``torch.distributed`` side by side.

``python -m tests.launchers.both_apis FOLDER`` prints one line of JSON. All cases run
one after the other in each rank, so each finds what the case before has left. Their
process groups meet in files of the folder: a rank that uses ``env://`` again may find
the store of the last group, which rank 0 has not yet destroyed.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import bluecomm as bf
from tests.launchers.torch_script import use_variables_of_the_launcher

_numbers = itertools.count()


def make_group(backend: str) -> None:
    """Make the default process group."""
    path = Path(sys.argv[1], f"store{next(_numbers)}")
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend, f"file://{path}", rank=rank, world_size=size)


@contextmanager
def raises(kind: type[Exception], text: str) -> Iterator[None]:
    """Check that the body raises an error."""
    try:
        yield
    except kind as error:
        if text not in str(error):
            raise
        return
    raise AssertionError(f"nothing was raised that says {text!r}")


def check_both() -> None:
    """Check that operations of both meet their own kind, in any order."""
    for _ in range(2):
        x = torch.full((3,), float(dist.get_rank()))
        dist.all_reduce(x)
        ranks = range(dist.get_world_size())
        assert x.tolist() == [float(sum(ranks))] * 3
        mean = bf.allreduce(torch.full((3,), float(bf.rank())))
        assert mean.tolist() == [sum(ranks) / len(ranks)] * 3
        assert (bf.rank(), bf.size()) == (dist.get_rank(), len(ranks))


def init_after() -> None:
    """``bluecomm.init`` takes the world of the group, which thus outlives the group."""
    make_group("bluecomm")
    assert bf.is_initialized()
    bf.init()
    check_both()
    dist.destroy_process_group()
    assert bf.allreduce(torch.ones(1)).tolist() == [1.0]
    bf.shutdown()


def init_before() -> None:
    """The process group finds the world of ``bluecomm.init``, and does not end it."""
    bf.init()
    make_group("cpu:bluecomm,cuda:nccl")
    check_both()
    dist.destroy_process_group()
    assert bf.allreduce(torch.ones(1)).tolist() == [1.0]
    make_group("bluecomm")
    check_both()
    dist.destroy_process_group()
    bf.shutdown()


def group_alone() -> None:
    """The world of a process group ends with it."""
    make_group("bluecomm")
    check_both()
    dist.new_group([0])
    dist.destroy_process_group()
    assert not bf.is_initialized()


def shutdown_before_destroy() -> None:
    """The group says what has ended it, and can be destroyed and made again."""
    make_group("bluecomm")
    bf.init()
    bf.shutdown()
    with raises(bf.ShutdownError, "destroy_process_group"):
        dist.all_reduce(torch.ones(1))
    dist.destroy_process_group()
    group_alone()


def groups_beside_gloo() -> None:
    """Groups of bluecomm beside a default group of gloo."""
    make_group("gloo")
    if dist.get_rank() == 0:
        with raises(bf.BluecommError, "needs the world of all"):
            dist.new_group([0], backend="bluecomm")
    else:
        dist.new_group([0], backend="bluecomm")
    groups = [dist.new_group(backend="bluecomm") for _ in range(2)]
    for group in groups:
        x = torch.ones(1)
        dist.all_reduce(x, group=group)
        assert x.item() == dist.get_world_size()
        dist.destroy_process_group(group)
    assert not bf.is_initialized()
    bf.init()
    alone = dist.new_group([0], backend="bluecomm")
    if dist.get_rank() == 0:
        dist.all_reduce(torch.ones(1), group=alone)
    dist.destroy_process_group()
    assert bf.allreduce(torch.ones(1)).tolist() == [1.0]
    bf.shutdown()


CASES = (
    init_after,
    init_before,
    group_alone,
    shutdown_before_destroy,
    groups_beside_gloo,
    init_after,
)


def main() -> None:
    """Run all cases and print the source of the first world."""
    use_variables_of_the_launcher()
    make_group("bluecomm")
    found: dict[str, Any] = {"rank": bf.rank(), "cases": []}
    found["source"] = bf.runtime.current_communicator().world.assignment.source
    dist.destroy_process_group()
    for case in CASES:
        case()
        found["cases"].append(case.__name__)
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
