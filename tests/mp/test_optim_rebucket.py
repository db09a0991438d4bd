"""Each algorithm that can change its buckets trains on as if it had not."""

import pytest
import torch

import bluecomm as bf
from bluecomm.optim.registry import get_algorithm
from bluecomm.optim.wrapper import COORDINATOR_KEY
from tests.support.ranks import run_ranks
from tests.support.training import (
    OPTIMIZERS,
    RANKS,
    backward,
    flatten,
    make_model,
)

pytestmark = pytest.mark.mp

ONE, EACH = 1 << 20, 1  # all parameters in one bucket, and a bucket for each
STEPS = 9
# Steps after which the buckets change, and their limit in bytes.
CHANGES = {2: EACH, 3: 300, 6: ONE}
MAY_REBUCKET = [name for name in bf.algorithm_names() if get_algorithm(name).rebuckets]
# Codes of a value depend on the values beside it in the bucket.
DEPEND_ON_BUCKETS = {"bytegrad", "choco", "sparse_loco"}
DEPEND_ON_BUCKETS |= {"low_precision_decentralized"}
OPTIONS = {
    "gossip_pga": {"period": 3},
    "local_sgd": {"num_steps_per_communication": 2},
    "desloc": {"num_steps_per_communication": 2, "momentum_every": 1},
    "diloco": {"num_steps_per_communication": 2, "outer_momentum": 0.3},
    "noloco": {"num_steps_per_communication": 2},
    "sparse_loco": {"num_steps_per_communication": 2, "k": 5},
}
# decentlam and demo add a momentum of their own.
OPTIMIZER_OF = {"decentlam": "sgd", "demo": "sgd", "desloc": "adamw"}
# More cases of the algorithms: the other order, rounds in every second step, a schedule
# whose rounds may not be counted twice, accumulation.
CASES = {
    **{name: (name, OPTIONS.get(name, {})) for name in MAY_REBUCKET},
    "tracking, cta": ("gradient_tracking", {"order": "cta"}),
    "averaging, atc": ("neighbor_allreduce", {"order": "atc"}),
    "one peer": ("neighbor_allreduce", {"topology": "one_peer"}),
    "iterator": ("neighbor_allreduce", {"topology": "iterator", "order": "atc"}),
    "every other": ("d2", {"num_steps_per_communication": 2}),
    "accumulation": ("gradient_allreduce", {"backward_passes_per_step": 2}),
}


def coordinator_of(optimizer):
    return vars(optimizer)[COORDINATOR_KEY]


def train(algorithm, options, changes, before):
    """Return the parameters on the way, and how many there are in each bucket."""
    model = make_model("mlp", bf.rank())
    if options.get("topology") == "iterator":
        options = {
            **options,
            "topology": bf.GetDynamicOnePeerSendRecvRanks(
                bf.ExponentialTwoGraph(RANKS), bf.rank()
            ),
        }
    bf.broadcast_parameters(model.state_dict())
    optimizer = bf.DistributedOptimizer(
        OPTIMIZERS[OPTIMIZER_OF.get(algorithm, "momentum")](model.parameters()),
        model,
        algorithm=algorithm,
        bucket_bytes=before,
        **options,
    )
    seen = []
    for step in range(STEPS):
        optimizer.zero_grad()
        for number in range(options.get("backward_passes_per_step", 1)):
            backward(model, bf.rank(), STEPS * number + step)
        optimizer.step()
        if step in changes:
            limit = {"bucket_bytes": changes[step]}
            coordinator_of(optimizer).change_options(limit)
        if step % 2:  # else the round of ATC is under way
            optimizer.synchronize()
            seen.append(flatten(model))
    optimizer.synchronize()
    assert coordinator_of(optimizer).context.schedule.round >= STEPS // 3, algorithm
    numbers = [len(bucket.slots) for bucket in coordinator_of(optimizer).buckets]
    return torch.stack([*seen, flatten(model)]), numbers


def train_all():
    bf.set_topology(bf.MeshGrid2DGraph(RANKS, (1, RANKS)), is_weighted=True)
    found = {}
    for name, (algorithm, options) in CASES.items():
        unchanged, alone = train(algorithm, options, {}, ONE)
        changed, together = train(algorithm, options, CHANGES, ONE)
        assert alone == together, name
        if algorithm in DEPEND_ON_BUCKETS:
            unchanged, _ = train(algorithm, options, {}, EACH)
            changed, numbers = train(algorithm, options, {0: EACH}, EACH)
            assert set(numbers) == {1}, name
        found[name] = unchanged, changed
    return found


@pytest.fixture(scope="module")
def trained():
    return run_ranks(RANKS, train_all, ranks_per_machine=2)


@pytest.mark.parametrize("name", CASES)
def test_training_goes_on_bit_for_bit(name, trained):
    for of_rank in trained:
        unchanged, changed = of_rank[name]
        assert torch.isfinite(unchanged).all()
        assert torch.equal(unchanged, changed)


def test_algorithms_with_a_state_of_their_buckets_do_not_offer_it():
    refused = set(bf.algorithm_names()) - set(MAY_REBUCKET)
    assert {
        "onebit_adam",
        "zero_one_adam",
        "win_put",
        "pull_get",
        "push_sum",
        "local",
    } <= refused
