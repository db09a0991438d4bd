"""Classify texts of uneven length, with the same number of tokens on all ranks.

    bfrun -np 4 python examples/pytorch_text_buckets.py
    bfrun -np 4 python examples/pytorch_text_buckets.py --batches plain
    bfrun -np 4 python examples/pytorch_text_buckets.py --batches tokens

The lengths have a log-normal distribution, as those of many corpora. With ``plain``
batches each rank takes as many texts as the others, and in most steps waits for the one
with the longest. ``balanced`` batches deal the same texts by length. ``tokens`` makes
batches of as many texts as fit into a number of tokens. Texts are not padded, so the
time of a step depends on the tokens alone.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from torch import Tensor, nn

import bluecomm as bf
from dist_optimizer import distribute, make_parser

TOPICS = 4
TOKENS = 64
Text = tuple[Tensor, int]


class Texts(torch.utils.data.Dataset[Text]):
    """Texts that prefer the tokens of their topic, computed from their number."""

    def __init__(self, length: int, first: int = 0) -> None:
        self.length = length
        self.first = first

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Text:
        generator = torch.Generator().manual_seed(self.first + index)
        count = int(torch.randn((), generator=generator).exp() * 60) + 8
        topic = int(torch.randint(TOPICS, (), generator=generator))
        weights = torch.ones(TOKENS)
        weights[topic::TOPICS] = 3
        tokens = torch.multinomial(weights, count, True, generator=generator)
        return tokens, topic


class Classifier(nn.Module):
    """Classifies texts by the mean of what a small network makes of each token."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embedding = nn.Embedding(TOKENS, width)
        self.inner = nn.Sequential(nn.Linear(width, width), nn.ReLU())
        self.outer = nn.Linear(width, TOPICS)

    def forward(self, tokens: Tensor, text_of: Tensor, lengths: Tensor) -> Tensor:
        made = self.inner(self.embedding(tokens))
        sums = made.new_zeros(len(lengths), made.shape[1])
        sums = sums.index_add(0, text_of, made)
        return self.outer(sums / lengths.unsqueeze(1))


def join_texts(texts: list[Text]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return all tokens, the text of each token, the lengths and the topics."""
    lengths = torch.tensor([len(tokens) for tokens, _ in texts])
    text_of = torch.repeat_interleave(torch.arange(len(texts)), lengths)
    topics = torch.tensor([topic for _, topic in texts])
    return torch.cat([tokens for tokens, _ in texts]), text_of, lengths, topics


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__, epochs=4, lr=0.5)
    parser.add_argument(
        "--batches",
        choices=["balanced", "plain", "tokens"],
        default="balanced",
        help="how texts are dealt to ranks (default: balanced)",
    )
    parser.add_argument(
        "--texts", type=int, default=2048, help="training texts (default: 2048)"
    )
    return parser.parse_args()


def make_sampler(
    args: argparse.Namespace, texts: Texts
) -> bf.data.DistributedBatchSampler | bf.data.LoadBalancingBatchSampler:
    def cost(text: Text) -> int:
        return len(text[0])

    if args.batches == "plain":
        return bf.data.DistributedBatchSampler(texts, args.batch_size, seed=args.seed)
    if args.batches == "balanced":
        return bf.data.LoadBalancingBatchSampler(
            texts, args.batch_size, cost=cost, seed=args.seed
        )
    # The mean text has about 107 tokens.
    return bf.data.LoadBalancingBatchSampler(
        texts, max_cost=max(110 * args.batch_size, 4096), cost=cost, seed=args.seed
    )


@torch.no_grad()
def accuracy(model: nn.Module) -> float:
    """Return the share of new texts that this rank's model classifies correctly."""
    texts = Texts(256, first=10**9)
    tokens, text_of, lengths, topics = join_texts([texts[i] for i in range(256)])
    scores = model(tokens, text_of, lengths)
    return float((scores.argmax(1) == topics).float().mean())


def main() -> None:
    args = parse_arguments()
    bf.init()
    torch.manual_seed(args.seed)
    model = Classifier()
    bf.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = torch.optim.SGD(model.parameters(), args.lr)
    optimizer = distribute(optimizer, model, args)
    texts = Texts(args.texts)
    loader = bf.data.DataLoader(
        texts,
        batch_sampler=make_sampler(args, texts),
        seed=args.seed,
        collate_fn=join_texts,
        num_workers=0,
        progress=True,
    )
    taken = []
    bf.reset_stats()
    begin = time.perf_counter()
    for _ in range(args.epochs):
        for tokens, text_of, lengths, topics in loader:
            optimizer.zero_grad()
            scores = model(tokens, text_of, lengths)
            nn.functional.cross_entropy(scores, topics).backward()
            optimizer.step()
            taken.append(len(tokens))
    step_s = (time.perf_counter() - begin) / len(taken)
    counted = bf.stats().input
    # Steps x ranks. All ranks have made equally many steps.
    tokens_of = bf.allgather(torch.tensor([taken])).T.double()
    result = {
        "batches": args.batches,
        "ranks": bf.size(),
        "steps": len(taken),
        "step_s": step_s,
        "tokens_of_slowest": float((tokens_of.amax(1) / tokens_of.mean(1)).mean()),
        "texts": int(bf.allreduce(torch.tensor(counted.samples), op=bf.Sum)),
        "worst_rank_accuracy": float(
            bf.allreduce(torch.tensor(accuracy(model)), op=bf.Min)
        ),
    }
    if bf.rank() == 0:
        print(
            f"test accuracy of the worst rank: {result['worst_rank_accuracy']:.1%}\n"
            f"{result['steps']} steps of {1e3 * step_s:.1f} ms; the rank with most "
            f"tokens has {result['tokens_of_slowest']:.2f} times the mean"
        )
        if args.json:
            with open(args.json, "w") as file:
                json.dump(result, file, indent=2)


if __name__ == "__main__":
    main()
