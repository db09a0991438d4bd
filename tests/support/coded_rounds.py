"""``low_precision_decentralized`` and ``choco`` by their formulas, on flat tensors.

Gradients are given, so that a step of SGD is one operation, and the references run the
formulas on the flat tensors of all ranks, in one process.
"""

import copy

import numpy as np
import torch

import bluecomm as bf
from bluecomm.compression import MinMaxUInt8
from bluecomm.optim.wrapper import COORDINATOR_KEY

STEPS, RATE = 6, 0.1
# Two chunks of ScaledSign.
SHAPES = [(7, 5), (5000,), (3,)]
ALIGNMENT_NBYTES = 64
LPD = "low_precision_decentralized"


def start_of(rank, dtype):
    """Return a rank's parameters, which differ between ranks."""
    generator = torch.Generator().manual_seed(rank)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def gradients_of(rank, step, dtype):
    generator = torch.Generator().manual_seed(1000 * (step + 1) + rank)
    return [torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]


def make(algorithm, options, dtype):
    values = start_of(bf.rank(), dtype)
    model = torch.nn.ParameterList([torch.nn.Parameter(value) for value in values])
    sgd = torch.optim.SGD(model.parameters(), RATE, foreach=False)
    return model, bf.DistributedOptimizer(sgd, model, algorithm=algorithm, **options)


def take_step(model, optimizer, step):
    gradients = gradients_of(bf.rank(), step, model[0].dtype)
    for parameter, gradient in zip(model, gradients, strict=True):
        parameter.grad = gradient
    optimizer.step()


def values_of(model, optimizer):
    optimizer.synchronize()
    return [parameter.detach().clone() for parameter in model]


def algorithm_of(optimizer):
    return vars(optimizer)[COORDINATOR_KEY].algorithm


def memory_of(optimizer):
    """Return the tensors that the algorithm keeps, by name and parameter."""
    return optimizer.state_dict()["bluecomm"]["algorithm"]["memory"]


# -- the references --------------------------------------------------------------------


class Layout:
    """The flat form of one bucket, which begins with the last parameter."""

    def __init__(self, dtype):
        step = ALIGNMENT_NBYTES // dtype.itemsize
        self.starts, end = {}, 0
        for position in reversed(range(len(SHAPES))):
            self.starts[position] = end
            end += -(-int(np.prod(SHAPES[position])) // step) * step
        self.numel = end
        self.dtype = torch.promote_types(dtype, torch.float32)

    def parts(self, flat):
        return [
            flat[start:][: int(np.prod(SHAPES[position]))].view(SHAPES[position])
            for position, start in sorted(self.starts.items())
        ]

    def flat(self, parts):
        flat = torch.zeros(self.numel, dtype=self.dtype)
        for view, part in zip(self.parts(flat), parts, strict=True):
            view.copy_(part)
        return flat

    def coded(self, codec, difference, number):
        """Return a difference as decoded; the first one is exact."""
        if number == 0:
            return difference.to(self.dtype)
        codec = codec.at_round(number)
        codes = torch.empty(
            codec.encoded_nbytes(self.numel, torch.float32), dtype=torch.uint8
        )
        assert codec.encode(difference.float(), codes)
        decoded = torch.empty(self.numel)
        codec.decode(codes, decoded)
        return self.flat(self.parts(decoded))


def ring_rounds(layout, ranks):
    """Average on a ring of nodes with these numbers of ranks, as Bagua does for one."""
    size = len(ranks)
    w, left, right = (
        [torch.zeros(layout.numel, dtype=layout.dtype) for _ in range(size)]
        for _ in range(3)
    )

    def average(x, number):
        q = []
        for k in range(size):
            to_left, to_right = (
                min(1.0, ranks[(k + hop) % size] / ranks[k]) / 3 for hop in (-1, 1)
            )
            d = x[k].sub(w[k], alpha=1 + (to_left + to_right))
            d.add_(left[k], alpha=to_left).add_(right[k], alpha=to_right)
            q.append(layout.coded(MinMaxUInt8(), d, number))
        for k in range(size):
            w[k].add_(q[k])
            left[k].add_(q[k - 1])
            right[k].add_(q[(k + 1) % size])
        return [one.clone() for one in w]

    return average


def ring_weights(ranks):
    """Return the weights on a ring of nodes with these numbers of ranks."""
    size, found = len(ranks), []
    for k in range(size):
        weights = {}
        for other in ((k - 1) % size, (k + 1) % size):
            share = min(1.0, ranks[other] / ranks[k]) / 3
            weights[other] = weights.get(other, 0.0) + share
        found.append({k: 1.0 - sum(weights.values()), **weights})
    return found


def choco_rounds(layout, weights, codec, gamma):
    """Average with these weights of each node, with h and s."""
    h, s = (
        [torch.zeros(layout.numel, dtype=torch.float64) for _ in weights]
        for _ in range(2)
    )

    def average(x, number):
        pairs = zip(x, h, strict=True)
        q = [layout.coded(codec, own - mine, number) for own, mine in pairs]
        result = []
        for k, of_node in enumerate(weights):
            h[k].add_(q[k])
            for other, weight in of_node.items():
                s[k].add_(q[other], alpha=weight)
            result.append(x[k].add(s[k] - h[k], alpha=gamma))
        return result

    return average


def steps_of(average, layout, ranks, dtype, every):
    """Yield the parameters of some ranks after each step.

    Args:
        average: Takes the flat parameters of all of them and the number of the round,
            and returns the next ones.
        layout: The flat form.
        ranks: The ranks, whose numbers choose their parameters and gradients.
        dtype: Type of the parameters.
        every: Steps from one round to the next.
    """
    x = [start_of(rank, dtype) for rank in ranks]
    for step in range(STEPS):
        for rank, parts in zip(ranks, x, strict=True):
            gradients = gradients_of(rank, step, dtype)
            for part, gradient in zip(parts, gradients, strict=True):
                part.add_(gradient, alpha=-RATE)
        if (step + 1) % every == 0:
            flats = [layout.flat(parts) for parts in x]
            mixed = average(flats, step // every)
            x = [[part.to(dtype) for part in layout.parts(one)] for one in mixed]
        yield copy.deepcopy(x)
