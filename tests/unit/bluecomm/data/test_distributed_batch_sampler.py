"""Each sample once per epoch, in equally many batches, also after other worlds."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, DistributedSampler

from bluecomm.data import DistributedBatchSampler
from bluecomm.data.remaining import Remaining
from bluecomm.data.steps import EqualSteps
from tests.unit.bluecomm.data.worlds import Sized, flat, run_steps


def world(length, ranks, batch_size, **options):
    return [
        DistributedBatchSampler(
            Sized(length), batch_size, rank=rank, num_replicas=ranks, **options
        )
        for rank in range(ranks)
    ]


@given(
    length=st.integers(0, 200),
    ranks=st.integers(1, 6),
    batch_size=st.integers(1, 9),
    pad=st.booleans(),
    shuffle=st.booleans(),
)
def test_each_sample_once_in_equally_many_batches(
    length, ranks, batch_size, pad, shuffle
):
    samplers = world(length, ranks, batch_size, pad=pad, shuffle=shuffle, seed=3)
    if 0 < length < ranks and not pad:
        with pytest.raises(ValueError, match=f"left for {ranks} ranks"):
            len(samplers[0])
        return
    assert len({len(sampler) for sampler in samplers}) == 1
    taken, _ = run_steps(samplers)
    assert len(taken) == len(samplers[0])
    for batches in taken[:-1]:
        assert {len(batch) for batch in batches} == {batch_size}
    if taken:
        sizes = {len(batch) for batch in taken[-1]}
        assert min(sizes) >= 1
        assert max(sizes) <= batch_size + 1
        assert max(sizes) - min(sizes) <= (0 if pad else 1)
    if pad:
        assert set(flat(taken)) == set(range(length))
        assert len(flat(taken)) - length < ranks
    else:
        assert sorted(flat(taken)) == list(range(length))


@settings(max_examples=50)
@given(
    worlds=st.lists(
        st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(0, 6)), max_size=5
    ),
    lost=st.integers(0, 3),
    length=st.integers(0, 150),
    epoch=st.integers(0, 2),
)
def test_kills_and_other_worlds_count_each_sample_once(worlds, lost, length, epoch):
    """Each world saves after some steps, makes ``lost`` more and is killed."""
    counted, state = [], None
    for ranks, batch_size, steps in [*worlds, (3, 4, None)]:
        samplers = world(length, ranks, batch_size, pad=True, seed=1)
        for sampler in samplers:
            sampler.set_epoch(epoch)
            if state is not None:
                sampler.load_state_dict(state)
        taken, saved = run_steps(samplers, steps)
        counted += flat(taken)
        # Repeats fill up the very end of the epoch, and only there.
        repeats = len(counted) - len(set(counted))
        assert repeats < ranks
        if repeats:
            assert set(counted) == set(range(length))
            counted = list(set(counted))
        state = json.loads(json.dumps(saved))
        for sampler in samplers:
            passing = iter(sampler)
            for _ in range(lost):
                next(passing, None)
    assert sorted(counted) == list(range(length))


def test_the_same_world_goes_on_as_if_nothing_had_happened():
    whole, _ = run_steps(world(103, 4, 3))
    _, state = run_steps(world(103, 4, 3), 2)
    resumed = world(103, 4, 3)
    for steps in (3, 4):
        for sampler in resumed:
            sampler.load_state_dict(state)
        assert len(resumed[0]) == len(whole) - sum(x["steps"] for x in state["phases"])
        taken, state = run_steps(resumed, steps)
        begin = sum(phase["steps"] for phase in state["phases"]) - steps
        assert taken == whole[begin : begin + steps]
    assert len(state["phases"]) == 1


def test_without_shuffle_ranks_have_what_distributed_sampler_gives():
    for rank, sampler in enumerate(world(48, 4, 3, shuffle=False)):
        torchs = DistributedSampler(Sized(48), 4, rank, shuffle=False)
        assert flat([list(sampler)]) == list(torchs)


def test_drop_last_leaves_out_other_samples_in_each_epoch():
    samplers = world(11, 2, 2, drop_last=True)
    left = []
    for epoch in range(5):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        taken, state = run_steps(samplers)
        assert len(taken) == 2
        assert len(set(flat(taken))) == 8
        left.append(frozenset(range(11)) - set(flat(taken)))
    assert len(set(left)) > 1
    # The epoch is finished, whatever it has left out.
    for sampler in world(11, 1, 1, drop_last=True):
        sampler.load_state_dict(state)
        assert list(sampler) == []


def test_a_pass_that_was_broken_off_begins_anew():
    (sampler,) = world(20, 1, 4)
    first = [batch for _, batch in zip(range(2), sampler, strict=False)]
    assert list(sampler)[:2] == first
    assert len(sampler) == 5


def test_epochs_differ_and_a_new_one_forgets_the_state():
    (sampler,) = world(20, 1, 4)
    first = list(sampler)
    state = sampler.state_dict(2)
    sampler.load_state_dict(state)
    sampler.set_epoch(0)
    assert list(sampler) == first[2:]
    sampler.load_state_dict(state)
    sampler.set_epoch(1)
    assert sorted(flat([list(sampler)])) == list(range(20))
    assert list(sampler) != first


def test_torchs_loader_takes_batches_ahead_and_the_state_counts_steps():
    """Workers are not started: a pass over the sampler is what the loader makes."""
    (sampler,) = world(20, 1, 4)
    loader = DataLoader(list(range(20)), batch_sampler=sampler)
    assert len(loader) == 5
    assert [batch.tolist() for batch in loader] == list(sampler)
    assert sampler.state_dict()["phases"][0]["steps"] == 5
    assert sampler.state_dict(3)["phases"][0]["steps"] == 3
    assert sampler.state_dict(0)["phases"] == []


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match=r"the dataset \(generator\) has no length"):
        DistributedBatchSampler((i for i in range(3)), 1)
    with pytest.raises(ValueError, match="expected a batch_size of at least 1, got 0"):
        DistributedBatchSampler(range(3), 0)
    with pytest.raises(ValueError, match="drop_last leaves samples out and pad repea"):
        DistributedBatchSampler(range(3), 1, drop_last=True, pad=True)
    with pytest.raises(ValueError, match="expected a rank from 0 to num_replicas - 1"):
        DistributedBatchSampler(range(3), 1, rank=2, num_replicas=2)
    with pytest.raises(ValueError, match="rank=1 and num_replicas=None; pass both"):
        DistributedBatchSampler(range(3), 1, rank=1)
    with pytest.raises(ValueError, match="data: 1 sample is left for 3 ranks"):
        EqualSteps(Remaining.whole(1), 3, 1, drop_last=False, pad=False)


def test_a_state_of_other_data_is_refused():
    (sampler,) = world(20, 1, 4)
    state = sampler.state_dict()
    with pytest.raises(ValueError, match=r"expected the keys .* got \['epoch'\]"):
        sampler.load_state_dict({"epoch": 1})
    for other, text in [
        (world(21, 1, 4)[0], "length was 20 and is 21"),
        (world(20, 1, 4, seed=2)[0], "seed was 0 and is 2"),
        (world(20, 1, 4, shuffle=False)[0], "shuffle was True and is False"),
    ]:
        with pytest.raises(
            ValueError, match=f"the state belongs to other data: {text}"
        ):
            other.load_state_dict(state)


def test_other_files_are_named():
    files = {f"/data/{i}.rec": [100, 10] for i in range(8)}
    sampler = DistributedBatchSampler(Sized(20, files), 4)
    state = json.loads(json.dumps(sampler.state_dict()))
    sampler.load_state_dict(state)
    changed = {**files, "/data/3.rec": [99, 10], "/data/9.rec": [1, 1]}
    del changed["/data/5.rec"]
    other = DistributedBatchSampler(Sized(20, changed), 4)
    with pytest.raises(ValueError, match="other data: fingerprint: ") as raised:
        other.load_state_dict(state)
    for text in [
        "/data/3.rec was [100, 10] and is [99, 10]",
        "/data/5.rec was [100, 10] and is None",
        "/data/9.rec was None and is [1, 1]",
    ]:
        assert text in str(raised.value)
    many = DistributedBatchSampler(Sized(20, {name: [0, 0] for name in files}), 4)
    with pytest.raises(ValueError, match="and 4 more"):
        many.load_state_dict(state)
