"""Autotuning between machines: how the engine adds, and how links send."""

import gc
import json

import pytest
import torch

import bluecomm as bf
from bluecomm.optim.autotune.sending import Sending
from bluecomm.runtime import current_communicator
from tests.support.ranks import run_ranks
from tests.support.tuned_training import QUICK, STEPS, coordinator_of, make

pytestmark = pytest.mark.mp

ALGORITHMS = ["auto", "direct", "ring", "hierarchical"]
KIB = 1 << 10
STREAMS, CHUNKS = [1, 2, 4], [32 * KIB, 64 * KIB, 128 * KIB, 256 * KIB, "auto"]
SENDING = [
    {"max_streams": 1, "chunk_bytes": 32 * KIB},
    {"max_streams": 2, "chunk_bytes": 256 * KIB},
    {"max_streams": 4, "chunk_bytes": "auto"},
]


def step_of(model, optimizer, step):
    generator = torch.Generator().manual_seed(10 * step + bf.rank())
    optimizer.zero_grad()
    x = torch.randn(3, 4, dtype=torch.float64, generator=generator)
    model(x).square().mean().backward()
    optimizer.step()


def train_by(algorithm, steps=3):
    """Return the parameters after a few steps; the last rank joins before the end."""
    model, optimizer = make(autotune=False)
    coordinator_of(optimizer).change_options({"allreduce_algorithm": algorithm})
    for step in range(steps - (bf.rank() == bf.size() - 1)):
        step_of(model, optimizer, step)
    optimizer.join()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def sent_by_stream():
    """Return the chunks and bytes that this rank has sent to other machines."""
    links = [link.streams for link in bf.stats().neighbors if link.transport == "tcp"]
    chunks, nbytes = torch.zeros(4), torch.zeros(4)
    for streams in links:
        for number, stream in enumerate(streams):
            chunks[number] += stream.chunks_sent
            nbytes[number] += stream.bytes_sent
    return chunks, nbytes


def send_by(setting):
    """Return a sum, and what each stream has sent for it."""
    sending = Sending(current_communicator().world)
    sending.apply(setting)
    chunks, nbytes = sent_by_stream()
    total = bf.allreduce(torch.arange(1 << 20) * (1.0 + bf.rank()), op=bf.Sum)
    chunks_after, nbytes_after = sent_by_stream()
    return total, chunks_after - chunks, nbytes_after - nbytes


def tune():
    """Return the choices of each step of a search, and the parameters at its end."""
    model, optimizer = make(autotune=True)
    world = current_communicator().world
    used, limits, limit = [], [], world.limit_sending

    def limit_sending(streams, chunk_nbytes):
        limits.append((len(used), streams, chunk_nbytes))
        limit(streams, chunk_nbytes)

    world.limit_sending = limit_sending
    for step in range(STEPS):
        step_of(model, optimizer, step)
        used.append(coordinator_of(optimizer).context.options.allreduce_algorithm)
    optimizer.synchronize()
    assert coordinator_of(optimizer)._tuning.is_over
    later = make(autotune=True)
    assert "chunk_bytes" not in coordinator_of(later[1])._tuning.space.choices
    # Its end leaves the links as the first one has tuned them.
    del later
    gc.collect()
    values = torch.cat([p.detach().flatten() for p in model.parameters()])
    return used, limits, values


def differ():
    model, optimizer = make(autotune=False)
    algorithm = "ring" if bf.rank() == 0 else "direct"
    coordinator_of(optimizer).change_options({"allreduce_algorithm": algorithm})
    with pytest.raises(bf.MismatchError, match="and pass the same algorithm"):
        step_of(model, optimizer, 0)


def train_all():
    found = [train_by(algorithm) for algorithm in ALGORITHMS]
    sent = [send_by(setting) for setting in SENDING]
    tuned = tune()
    differ()
    return found, sent, tuned


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    path = tmp_path_factory.mktemp("autotune") / "tuned.json"
    environment = QUICK | {
        "BLUECOMM_AUTOTUNE_FILE": str(path),
        "BLUECOMM_TCP_STREAMS": "4",
    }
    of_ranks = run_ranks(4, train_all, machines=[0, 0, 1, 1], environment=environment)
    (entry,) = json.loads(path.read_text())["optimizers"].values()
    return of_ranks, entry


def test_algorithms_give_the_same_mean(trained):
    first, *others = [found for found, _, _ in trained[0]]
    for values in first[1:]:
        torch.testing.assert_close(values, first[0])
    # The last rank has joined, and does not take the last step.
    for values in others[:-1]:
        assert all(torch.equal(a, b) for a, b in zip(values, first, strict=True))


def test_links_send_as_they_are_told_and_results_stay_the_same(trained):
    for _, sent, _ in trained[0]:
        for (total, chunks, nbytes), setting in zip(sent, SENDING, strict=True):
            assert torch.equal(total, sent[0][0])
            assert chunks[setting["max_streams"] :].sum() == 0
            most = (
                256 * KIB
                if setting["chunk_bytes"] == "auto"
                else setting["chunk_bytes"]
            )
            assert nbytes.sum() <= chunks.sum() * (most + KIB) + 64 * KIB


def test_all_ranks_change_together(trained):
    of_ranks, entry = trained
    (used, limits, values), *others = [tuned for _, _, tuned in of_ranks]
    for others_used, others_limits, others_values in others:
        assert others_used == used
        assert others_limits == limits
        assert torch.equal(others_values, values)
    assert len(set(used)) > 1
    choices = {"allreduce_algorithm": ALGORITHMS, "chunk_bytes": CHUNKS}
    choices["max_streams"] = STREAMS
    assert entry["facts"]["choices"].endswith(f", {str(choices)[1:]}")
    assert entry["setting"]["allreduce_algorithm"] == used[-1]
    tried = [trial["setting"] for trial in entry["trials"]]
    assert set(used) == {one["allreduce_algorithm"] for one in tried} | {"auto"}
    applied = {(streams, chunk or "auto") for _, streams, chunk in limits}
    expected = {(one["max_streams"], one["chunk_bytes"]) for one in tried}
    assert applied == expected | {(4, "auto")}
