"""A job that trains with DistributedDataParallel while some of its ranks are lost.

Rank ``r`` has gradients of ``2**r``, so each average says whose gradients it contains.
Each rank prints this for each step; the lines of all ranks that are left are equal.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from tests.support.launch import Launched
from tests.support.survival_of_collectives import When, prepare_to_die, said_by_all

STEPS = 16
LOSS_AT = 6
# Results to which all ranks contribute.
COMPLETE = ("small", "large", "sparse", "hook", "sum", "average", "integers")


def ddp_command(victims: Sequence[int], when: When) -> list[str]:
    """Return the command of the ranks."""
    module = [sys.executable, "-m", "tests.support.survival_of_ddp"]
    return [*module, ",".join(map(str, victims)), when]


def check_ddp(job: Launched, size: int, victims: Sequence[int]) -> None:
    """Check what a job has printed: no step is lost, and all bits are equal."""
    survivors = [rank for rank in range(size) if rank not in victims]
    said = said_by_all(job, size, survivors)
    everybody = sum(1 << rank for rank in range(size))
    left = sum(1 << rank for rank in survivors)
    for what in (*COMPLETE, "subgroup"):
        ranks = [int(part) for part in said[what].split()]
        assert len(ranks) == STEPS, what
        before = 0 if what == "subgroup" else LOSS_AT
        assert ranks[:before] == [everybody] * before, said
        assert ranks[-1] & left == ranks[-1], said
        for earlier, later in itertools.pairwise(ranks):
            assert later & ~earlier == 0, f"{what}: a lost rank has come back: {said}"
    for what in COMPLETE:
        assert said[what].split()[-1] == str(left), said


def ranks_in(mean: float, size: int) -> int:
    """Return whose numbers have this mean, as the sum of their numbers ``2**r``."""
    return min(
        range(1, 1 << size), key=lambda ranks: abs(ranks / ranks.bit_count() - mean)
    )


class Model(torch.nn.Module):
    """Three buckets, one of them sparse, and a buffer that ranks change apart."""

    def __init__(self) -> None:
        super().__init__()
        self.small = torch.nn.Parameter(torch.zeros(3))
        self.large = torch.nn.Parameter(torch.zeros(300_000))
        self.table = torch.nn.Embedding(3, 1, sparse=True)
        torch.nn.init.zeros_(self.table.weight)
        self.register_buffer("seen", torch.zeros(70_000))

    def forward(self, weight: float) -> torch.Tensor:
        """Return a loss with the gradient ``weight`` everywhere."""
        self.seen += weight
        sparse = self.table(torch.tensor([1]))
        return sum((one * weight).sum() for one in (self.small, self.large, sparse))


def made() -> tuple[DistributedDataParallel, torch.optim.Optimizer]:
    """Return a model of several buckets in DDP, and its optimizer."""
    model = DistributedDataParallel(Model(), bucket_cap_mb=1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def main() -> None:
    """Train, and print who has contributed to each step."""
    victims = [int(rank) for rank in sys.argv[1].split(",")]
    when: When = sys.argv[2]  # type: ignore[assignment]
    dist.init_process_group("bluecomm")
    rank, size = dist.get_rank(), dist.get_world_size()
    mine = float(1 << rank)
    survivor = min({0, 1, 2, 3} - set(victims))
    subgroups = [dist.new_group([survivor, victim]) for victim in victims]
    model, optimizer = made()
    hooked, its_optimizer = made()
    hook = "fp16_compress_hook" if when == "released" else "allreduce_hook"
    hooked.register_comm_hook(None, getattr(default_hooks, hook))
    found: dict[str, list[int]] = {}
    for step in range(STEPS):
        optimizer.zero_grad()
        its_optimizer.zero_grad()
        loss = model(mine)
        if rank in victims and step == LOSS_AT:
            prepare_to_die(when, rank == victims[0], "allreduce.torch")
        loss.backward()
        hooked(mine).backward()
        optimizer.step()
        its_optimizer.step()
        total = torch.tensor([mine])
        dist.all_reduce(total)
        average = torch.tensor([mine])
        dist.all_reduce(average, dist.ReduceOp.AVG)
        # Truncated averages of these still tell all sets of four ranks apart.
        integers = torch.tensor([1000 << rank])
        dist.all_reduce(integers, dist.ReduceOp.AVG)
        pair = torch.tensor([0.0])
        if rank == survivor:
            pair.fill_(mine)
            for subgroup in subgroups:
                dist.all_reduce(pair, group=subgroup)
        elif rank in victims:
            pair.fill_(mine)
            dist.all_reduce(pair, group=subgroups[victims.index(rank)])
        dist.broadcast(pair, survivor)
        dist.barrier()
        module = model.module
        means = {
            "small": module.small.grad[-1],
            "large": module.large.grad[-1],
            "sparse": module.table.weight.grad.to_dense()[1],
            "hook": hooked.module.large.grad[-1],
            "average": average,
            "integers": integers / 1000,
        }
        for what, mean in means.items():
            found.setdefault(what, []).append(ranks_in(mean.item(), size))
        found.setdefault("sum", []).append(round(total.item()))
        found.setdefault("subgroup", []).append(round(pair.item()))
    for what, numbers in found.items():
        print(f"{what}:", *numbers, flush=True)
    for number, module in enumerate((model.module, hooked.module)):
        values = {
            value.item().hex()
            for parameter in module.parameters()
            for value in parameter.data.unique()
        }
        print(f"values{number}:", *sorted(values), flush=True)
    model(mine)  # takes the buffers of one rank
    print("buffer:", *(model.module.seen - mine).unique().tolist(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
