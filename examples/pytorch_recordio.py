"""Train on digits in a RecordIO file, whose records the ranks share out as they go.

    bfrun -np 4 python examples/pytorch_recordio.py
    bfrun --on-failure continue -np 4 python examples/pytorch_recordio.py --kill
    bfrun --on-failure continue -np 4 python examples/pytorch_recordio.py --kill 0
    bfrun -np 4 python examples/pytorch_recordio.py --dist-optimizer async --uneven

With ``--kill`` a rank is killed in the middle of an epoch. Others use its records, and
each record of the epoch still counts exactly once. With ``--uneven``, for algorithms in
which no rank waits for another one, fast ranks take more steps.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import bluecomm as bf
from classification import accuracy
from digits import load_whole
from dist_optimizer import add_momentum, distribute, make_parser
from models import create_model

SHAPE = (1, 8, 8)
# The victim ends in this step of the epoch in the middle.
KILL_AT_STEP = 3


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, epochs=8)
    add_momentum(parser)
    parser.add_argument(
        "--uneven", action="store_true", help="let fast ranks take more steps"
    )
    parser.add_argument(
        "--kill",
        type=int,
        nargs="?",
        const=1,
        metavar="RANK",
        help="kill this rank in the middle of the training (default: rank 1)",
    )
    return parser.parse_args()


def encode(image: Tensor, label: Tensor) -> bytes:
    return bytes([int(label)]) + image.numpy().tobytes()


def decode(record: bytes) -> tuple[Tensor, int]:
    image = torch.frombuffer(bytearray(record[1:]), dtype=torch.float32)
    return image.view(SHAPE), record[0]


def write_file() -> Path:
    """Write the training digits to a file on each machine, and return its path."""
    token = bf.broadcast_object(secrets.token_hex(8), 0)
    path = Path(tempfile.gettempdir(), f"digits-{token}.recordio")
    if bf.local_rank() == 0:
        images, labels, _, _ = load_whole()
        with bf.data.RecordIOWriter(path, chunk_nbytes=1 << 14) as writer:
            for image, label in zip(images, labels, strict=True):
                writer.write(encode(image, label))
    bf.barrier()
    return path


def remove_file(path: Path) -> None:
    """Remove the file once all ranks that are left have finished."""
    bf.barrier()
    for name in (path, Path(f"{path}.index")):
        name.unlink(missing_ok=True)


def main() -> None:
    args = parse_arguments()
    bf.init()
    torch.manual_seed(args.seed)
    model = create_model("digits_cnn")
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=args.momentum)
    optimizer = distribute(optimizer, model, args)
    path = write_file()
    dataset = bf.data.RecordIODataset(path, decode=decode)
    loader = bf.data.DataLoader(
        dataset,
        args.batch_size,
        seed=args.seed,
        partition="dynamic",
        uneven=args.uneven,
        num_workers=0,
        progress=True,
    )
    counted = []
    for epoch in range(args.epochs):
        model.train()
        for step, (images, labels) in enumerate(loader):
            is_due = epoch == args.epochs // 2 and step == KILL_AT_STEP
            if is_due and bf.rank() == args.kill:
                os.kill(os.getpid(), signal.SIGKILL)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images), labels).backward()
            optimizer.step()
        counted.append(loader.counted)
        if bf.rank() == bf.elastic.members()[0]:
            print(
                f"epoch {epoch + 1}: {counted[-1]} of {len(dataset)} records counted, "
                f"{len(bf.elastic.members())} ranks",
                flush=True,
            )
    remove_file(path)
    _, _, test_images, test_labels = load_whole()
    own = torch.tensor(accuracy(model, test_images, test_labels))
    worst = float(bf.allreduce(own, op=bf.Min, name="worst accuracy"))
    if bf.rank() == bf.elastic.members()[0]:
        print(f"test accuracy of the worst rank: {worst:.1%}")
        result = {
            "records": len(dataset),
            "counted": counted,
            "ranks": len(bf.elastic.members()),
            "worst_rank_accuracy": worst,
        }
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
