"""The program of each rank of ``tests.gpu.pair``; uses only torch and NCCL."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

DEVICE = torch.device("cuda", 0)
BACKEND = "nccl"
SIZES = [8, 1 << 10, 64 << 10, 1 << 20, 16 << 20, 256 << 20, 1 << 30]
SPEED_SIZES = [64 << 10, 1 << 20, 16 << 20, 128 << 20]
SPEED_S = 1.0


def main() -> None:
    """Run the part that the command line names, and print its result as JSON."""
    torch.cuda.set_device(DEVICE)
    dist.init_process_group(
        BACKEND,
        init_method=f"file://{os.environ['MEETING']}",
        rank=int(os.environ["RANK"]),
        world_size=int(os.environ["WORLD_SIZE"]),
        timeout=timedelta(seconds=300),
    )
    result = {"operations": operations, "ddp": ddp, "speed": speed}[sys.argv[1]]()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    print(json.dumps(result))


def fill(nbytes: int, rank: int) -> Tensor:
    """Return the tensor of a rank, of small integers whose sums are exact."""
    index = torch.arange(nbytes // 4, device=DEVICE, dtype=torch.int32)
    return ((index * 7 + rank * 3) % 1021).float()


def operations() -> dict[str, Any]:
    """Compare every element of each operation's result, for all sizes."""
    rank = dist.get_rank()
    # Both ranks need about five times the size of a message.
    room = torch.tensor(torch.cuda.mem_get_info()[0] // 12, device=DEVICE)
    dist.all_reduce(room, dist.ReduceOp.MIN)
    sizes = [size for size in SIZES if size <= int(room)]
    wrong = []
    for nbytes in sizes:
        mine, theirs = fill(nbytes, rank), fill(nbytes, 1 - rank)
        total = mine.clone()
        dist.all_reduce(total)
        together = torch.full((2 * (nbytes // 4),), -1.0, device=DEVICE)
        dist.all_gather_into_tensor(together, mine)
        gathered = together.chunk(2)
        received = torch.full_like(mine, -1.0)
        both = [
            dist.P2POp(dist.isend, mine, 1 - rank),
            dist.P2POp(dist.irecv, received, 1 - rank),
        ]
        for request in dist.batch_isend_irecv(both):
            request.wait()
        for name, right in (
            ("all_reduce", torch.equal(total, mine + theirs)),
            ("all_gather own", torch.equal(gathered[rank], mine)),
            ("all_gather other", torch.equal(gathered[1 - rank], theirs)),
            ("send/recv", torch.equal(received, theirs)),
        ):
            if not right:
                wrong.append(f"{name} of {nbytes} bytes")
    return {"sizes": sizes, "wrong": wrong, **versions()}


def versions() -> dict[str, Any]:
    """Return the GPU and the versions that figures depend on."""
    return {
        "gpu": torch.cuda.get_device_name(DEVICE),
        "torch": torch.__version__,
        "nccl": list(torch.cuda.nccl.version()),
    }


def make_model() -> nn.Module:
    """Return the same model in each process."""
    torch.manual_seed(0)
    layers = [nn.Linear(64, 512), nn.Tanh(), nn.Linear(512, 512), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(512, 10)).to(DEVICE)


def train(model: nn.Module, inputs: Tensor, labels: Tensor) -> None:
    """Take three steps."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs[step]), labels[step]).backward()
        optimizer.step()


def ddp() -> dict[str, Any]:
    """Train with DDP on half of each batch, and alone on the whole batch."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(3, 32, 64, generator=generator).to(DEVICE)
    labels = torch.randint(10, (3, 32), generator=generator).to(DEVICE)
    alone, together = make_model(), make_model()
    train(alone, inputs, labels)
    half = slice(16 * dist.get_rank(), 16 * dist.get_rank() + 16)
    train(
        DistributedDataParallel(together),  # on the one device of its parameters
        inputs[:, half],
        labels[:, half],
    )
    weights = [p.detach() for p in together.parameters()]
    pairs = zip(alone.parameters(), weights, strict=True)
    return {
        "difference": max(float((a - b).detach().abs().max()) for a, b in pairs),
        "checksum": sum(float(one.double().sum()) for one in weights),
    }


def speed() -> dict[str, float]:
    """Return the seconds of an all_reduce by its bytes, over about a second of calls.

    Both ranks make the same number of calls, which rank 0 chooses.
    """
    found = {}
    for nbytes in SPEED_SIZES:
        tensor = torch.zeros(nbytes // 4, device=DEVICE)

        def call(tensor: Tensor = tensor) -> None:
            dist.all_reduce(tensor)

        _timed(call, 3)
        calls = torch.tensor(
            max(3, min(1000, int(3 * SPEED_S / _timed(call, 3)))), device=DEVICE
        )
        dist.broadcast(calls, 0)
        found[str(nbytes)] = _timed(call, int(calls)) / int(calls)
    return found


def _timed(call: Callable[[], None], times: int) -> float:
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(times):
        call()
    torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
