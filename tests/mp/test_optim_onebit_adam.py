"""``onebit_adam`` beside its formula, bit by bit.

tests/mp/test_optim_qadam.py has the tests that it shares with ``qadam``.
"""

import numpy as np
import pytest
import torch

import bluecomm as bf
from tests.mp.test_optim_bytegrad import make
from tests.mp.test_optim_qadam import (
    BETAS,
    EPS,
    RATE,
    STEPS,
    WARMUP,
    momentum_of,
    train,
    watch,
    wrap,
)
from tests.support.ranks import run_ranks
from tests.unit.bluecomm.compression.test_scaled_sign import oracle

pytestmark = pytest.mark.mp


def signs_of(values):
    return oracle(values, 4096)[1]


class Reference:
    """The exchange of one flat tensor of float32, with the errors of all senders."""

    def __init__(self, senders, numel, ranks=None):
        self.divisor = np.float32(ranks or senders)
        self.share = -(-numel // senders)
        self.of_ranks = np.zeros((senders, numel), np.float32)
        self.of_owners = np.zeros(numel, np.float32)

    def average(self, values):
        """Return the common result; ``values`` has a row for each sender."""
        result = np.empty_like(self.of_owners)
        for first in range(0, result.size, self.share):
            piece = slice(first, first + self.share)
            total = None
            for own, error in zip(values, self.of_ranks, strict=True):
                wanted = own[piece] + error[piece]
                sent = signs_of(wanted)
                error[piece] = wanted - sent
                total = sent if total is None else total + sent
            wanted = total / self.divisor + self.of_owners[piece]
            result[piece] = signs_of(wanted)
            self.of_owners[piece] = wanted - result[piece]
        return result


CASES = {
    "normalized": (3, "mlp", {}),
    "as in the paper": (3, "mlp", {"normalized": False}),
    "several chunks": (2, "wide", {"weight_decay": 0.1}),
    "uneven": (3, "uneven", {}),
}


@pytest.mark.parametrize("case", CASES)
def test_each_step_follows_the_formula(case):
    ranks, kind, options = CASES[case]
    more = {"algorithm": "onebit_adam", **options}
    of_ranks = run_ranks(ranks, watch, kind, torch.float32, more)
    steps = list(zip(*of_ranks, strict=True))
    parameters = list(make(kind, torch.float32).parameters())
    order = list(reversed(range(len(parameters))))
    ends = np.cumsum([-(-parameters[k].numel() // 16) * 16 for k in order])
    starts = dict(zip(order, [0, *ends[:-1]], strict=True))
    reference = Reference(ranks, ends[-1])
    for number in range(WARMUP, STEPS):
        seen = steps[number][0]
        for other in steps[number][1:]:
            for key in ("after", "momentum", "second"):
                for one, same in zip(seen[key], other[key], strict=True):
                    assert one is same is None or torch.equal(one, same)
        last = steps[number - 1][0]["momentum"]
        roots = [
            one if one is None else one.sqrt() + EPS
            for one in steps[WARMUP - 1][0]["second"]
        ]
        values = np.zeros((ranks, ends[-1]), np.float32)
        for rank, row in zip(steps[number], values, strict=True):
            sent = momentum_of(rank, last, options.get("weight_decay", 0.0))
            for position, one in enumerate(sent):
                if one is not None:
                    if options.get("normalized", True):
                        one = one / roots[position]
                    row[starts[position] :][: one.numel()] = one.flatten().numpy()
        result = torch.from_numpy(reference.average(values))
        for position, root in enumerate(roots):
            before, after = seen["before"][position], seen["after"][position]
            if root is None:
                assert torch.equal(before, after)
                continue
            part = result[starts[position] :][: root.numel()].view(root.shape)
            momentum = part * root if options.get("normalized", True) else part
            assert torch.equal(seen["momentum"][position], momentum)
            rate = RATE / (1 - BETAS[0] ** (number + 1))
            torch.testing.assert_close(after, before - rate * momentum / root)


def refuse():
    model = make("mlp", torch.float32)
    optimizer = wrap(model, algorithm="onebit_adam", bucket_bytes=1)
    train(model, optimizer, range(STEPS))
    state = optimizer.state_dict()
    optimizer = wrap(model, algorithm="onebit_adam")
    with pytest.raises(ValueError, match=r"errors belong to numels=\[.*drop the key"):
        optimizer.load_state_dict(state)
    # A state of a warm-up has no errors, and loads into any number of ranks.
    state["bluecomm"]["algorithm"] = {"ranks": 7, "numels": [5], "errors": [{}]}
    optimizer.load_state_dict(state)
    del state["bluecomm"]
    optimizer.load_state_dict(state)
    train(model, optimizer, range(STEPS))
    with pytest.raises(TypeError, match="normalized must be True or False, got 1"):
        wrap(model, algorithm="onebit_adam", normalized=1)
    with pytest.raises(bf.MismatchError, match="normalized"):
        wrap(model, algorithm="onebit_adam", normalized=bf.rank() == 0)


def test_wrong_states_and_options_are_refused():
    run_ranks(2, refuse)
