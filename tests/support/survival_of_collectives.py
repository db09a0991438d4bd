"""A job that trains with collectives while some of its ranks are lost.

Rank ``r`` contributes ``2**r`` to each sum, so each sum says who has contributed. Each
rank prints its result of each step; the results of all ranks that are left are equal.
"""

from __future__ import annotations

import itertools
import os
import re
import signal
import sys
from collections.abc import Sequence
from typing import Any, Literal

import torch

import bluecomm as bf
from bluecomm.compression import E3M0
from bluecomm.runtime.epochs.transaction import Transaction
from bluecomm.runtime.epochs.transactions import Transactions
from tests.support.launch import Launched

# When a rank kills itself: before it contributes, when it has all buckets and has not
# entered the barrier, when it has seen the result, or while it repeats the round.
When = Literal["before", "uncommitted", "released", "repeated"]

STEPS = 24
LOSS_AT = 9


def collectives_command(victims: Sequence[int], when: When) -> list[str]:
    """Return the command of the ranks."""
    module = [sys.executable, "-m", "tests.support.survival_of_collectives"]
    return [*module, ",".join(map(str, victims)), when]


def said_by_all(job: Launched, size: int, survivors: Sequence[int]) -> dict[str, str]:
    """Return what all survivors have printed, and check that it is equal.

    Checks, too, that ``bfrun`` has reported how many ranks are left.
    """
    lines = {}
    for rank in survivors:
        lines[rank] = re.findall(rf"^\[{rank}\] (\w+): (.*)$", job.out, re.MULTILINE)
        assert lines[rank], job.out + job.err
        assert lines[rank] == lines[survivors[0]], job.out + job.err
    last = job.err.splitlines()[-1]
    assert f"finished with {len(survivors)} of {size} ranks; lost" in last, job.err
    return dict(lines[survivors[0]])


def check_collectives(job: Launched, size: int, victims: Sequence[int]) -> None:
    """Check what a job has printed: no step is lost, and all bits are equal."""
    survivors = [rank for rank in range(size) if rank not in victims]
    said = said_by_all(job, size, survivors)
    everybody = sum(1 << rank for rank in range(size))
    left = sum(1 << rank for rank in survivors)
    for what in ("gradients", "metric"):
        sums = [int(part) for part in said[what].split()]
        assert len(sums) == STEPS, what
        assert sums[:LOSS_AT] == [everybody] * LOSS_AT, said
        assert sums[-1] == left, said
        for before, after in itertools.pairwise(sums):
            assert after & ~before == 0, f"{what}: a lost rank has come back: {said}"
            assert after & left == left, f"{what}: a survivor is left out: {said}"


def model_of(rank: int) -> torch.nn.ParameterDict:
    """Return a model of two buckets; the loss of ``loss_of`` has equal gradients."""
    shapes = {"small": (3,), "large": (300_000,)}
    return torch.nn.ParameterDict(
        {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    )


def loss_of(model: torch.nn.ParameterDict, weight: float) -> torch.Tensor:
    """Return a loss with the gradient ``weight`` everywhere."""
    return sum((one * weight).sum() for one in model.values())  # type: ignore[return-value]


def die() -> None:
    """End this process as a machine that fails does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_in(owner: type[Transaction | Transactions], method: str, of: str) -> None:
    """End this process when it is about to run a method for a transaction.

    Args:
        owner: Class of the method.
        method: Its name.
        of: How the name of the transaction begins.
    """
    original = getattr(owner, method)

    def run(*args: Any, **kwargs: Any) -> Any:
        transaction = args[-1]
        name = transaction if isinstance(transaction, str) else transaction.key[0]
        if name.startswith(of):
            die()
        return original(*args, **kwargs)

    setattr(owner, method, run)


def die_before_the_engine_commits(of: str) -> None:
    """End this process when the engine would enter the barrier of a transaction."""
    original = Transactions._commit_in_engine

    def commit(self: Transactions, transaction: Transaction) -> bool:
        if transaction.key[0].startswith(of):
            for operation in transaction.operations:
                assert operation.request is not None
                operation.request.await_end()
            die()
        return original(self, transaction)

    setattr(Transactions, "_commit_in_engine", commit)  # noqa: B010


def prepare_to_die(when: When, is_first: bool, of: str) -> None:
    """Have this rank end in the step that follows, at a point of a transaction."""
    if when == "released":
        die_in(Transactions, "_leave_open", of)
    elif when == "uncommitted" or (when == "repeated" and is_first):
        die_in(Transactions, "_commit", of)
        die_before_the_engine_commits(of)
    elif when == "repeated":
        die_in(Transaction, "reset", of)
    else:
        die()


def averaging(algorithm: str, **options: Any) -> tuple[torch.nn.ParameterDict, Any]:
    """Return a model and an optimizer that averages its parameters."""
    model = model_of(bf.rank())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    named = model.named_parameters()
    return model, bf.DistributedOptimizer(
        optimizer, named_parameters=named, algorithm=algorithm, **options
    )


def main() -> None:
    """Train, and print what all ranks have contributed to each step."""
    victims = [int(rank) for rank in sys.argv[1].split(",")]
    when: When = sys.argv[2]  # type: ignore[assignment]
    bf.init()
    rank = bf.rank()
    model = model_of(rank)
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=1.0),
        named_parameters=model.named_parameters(),
        op=bf.Sum,
        bucket_bytes=1 << 20,
    )
    others = [
        averaging("allreduce", order="atc"),
        averaging("local_sgd", num_steps_per_communication=2),
        averaging("diloco", num_steps_per_communication=3, outer_lr=1.0),
    ]
    streaming = averaging(
        "diloco",
        num_steps_per_communication=4,
        outer_lr=1.0,
        fragments=2,
        overlap=1,
        mixing=0.5,
        codec=E3M0(),
        error_feedback=0.9,
    )
    gradients, metrics = [], []
    for step in range(STEPS):
        if rank in victims and step == LOSS_AT:
            prepare_to_die(when, rank == victims[0], "optim.0.gradients")
        before = model["large"][-1].item()
        optimizer.zero_grad()
        loss_of(model, -float(1 << rank)).backward()
        optimizer.step()
        gradients.append(round(model["large"][-1].item() - before))
        for other, its_optimizer in (*others, streaming):
            its_optimizer.zero_grad()
            loss_of(other, -float(1 << rank)).backward()
            its_optimizer.step()
        mine = torch.tensor([float(1 << rank)])
        metrics.append(round(bf.allreduce(mine, average=False, name="metric").item()))
        shown = bf.broadcast(mine, victims[0] ^ 1, name="shown").item()
        assert shown == 1 << (victims[0] ^ 1)
    print("gradients:", *gradients, flush=True)
    print("metric:", *metrics, flush=True)
    for number, (other, its_optimizer) in enumerate([(model, optimizer), *others]):
        its_optimizer.synchronize()
        values = {
            value.item().hex() for one in other.values() for value in one.unique()
        }
        print(f"values{number}:", *sorted(values), flush=True)
    # The parameters themselves differ; those of the outer optimizer are equal.
    state = streaming[1].state_dict()["bluecomm"]["algorithm"]["memory"]
    for name in ("before", "momentum"):
        tensors = state[name]
        values = {v.item().hex() for one in tensors.values() for v in one.unique()}
        print(f"{name}:", *sorted(values), flush=True)


if __name__ == "__main__":
    main()
