"""Codes between machines (``hierarchical=True``), bit by bit.

The machines have different numbers of ranks. Process sets of the same world are smaller
rings: with two machines, and with one.
"""

import copy
import itertools
from contextlib import nullcontext
from unittest import mock

import pytest
import torch

import bluecomm as bf
from bluecomm.compression import MinMaxUInt8
from bluecomm.optim.coded_differences import CodedDifferences
from tests.mp.test_optim_coded_averaging import train_and_resume
from tests.support.coded_rounds import (
    LPD,
    Layout,
    algorithm_of,
    choco_rounds,
    make,
    memory_of,
    ring_rounds,
    ring_weights,
    start_of,
    steps_of,
    take_step,
    values_of,
)
from tests.support.ranks import run_ranks

pytestmark = pytest.mark.mp

MACHINES = [0, 1, 2, 0]
EVERYONE, THREE, TWO = (0, 1, 2, 3), (0, 1, 3), (0, 3)
# Ranks, type of the parameters, steps from one round to the next.
CASES = {
    "three machines": (EVERYONE, torch.float32, 1),
    "every 2": (EVERYONE, torch.float64, 2),
    "two machines": (THREE, torch.bfloat16, 1),
    "one machine": (TWO, torch.float32, 1),
}
HIERARCHICAL = {"hierarchical": True}
GAMMA = 0.5
ALGORITHMS = {LPD: HIERARCHICAL, "choco": {**HIERARCHICAL, "gamma": GAMMA}}


def average_by_machines(algorithm, layout, machines):
    """Return the averaging of flat parameters in two levels."""
    ranks = [machines.count(machine) for machine in range(max(machines) + 1)]
    if algorithm == LPD:
        dtype, ring = layout.dtype, ring_rounds(layout, ranks)
    else:
        dtype, weights = torch.float64, ring_weights(ranks)
        ring = choco_rounds(layout, weights, MinMaxUInt8(), GAMMA)

    def average(x, number):
        means = []
        for machine, count in enumerate(ranks):
            pairs = zip(x, machines, strict=True)
            own = [one.to(dtype) for one, where in pairs if where == machine]
            means.append(sum(own[1:], start=own[0]) / count)
        if len(ranks) > 1:
            means = ring(means, number)
        return [means[machine].clone() for machine in machines]

    return average


def train_all():
    found = {}
    for case, (ranks, dtype, every) in CASES.items():
        process_set = bf.ProcessSet(ranks)
        for algorithm, given in ALGORITHMS.items() if bf.rank() in ranks else ():
            options = {
                **given,
                "process_set": process_set,
                "num_steps_per_communication": every,
            }
            found[case, algorithm] = train_and_resume(algorithm, options, dtype)
    return found


def test_each_step_follows_the_formula_bit_by_bit():
    of_ranks = run_ranks(4, train_all, machines=MACHINES)
    for case, algorithm in itertools.product(CASES, ALGORITHMS):
        ranks, dtype, every = CASES[case]
        layout, machines = Layout(dtype), [MACHINES[rank] for rank in ranks]
        average = average_by_machines(algorithm, layout, machines)
        steps = list(steps_of(average, layout, ranks, dtype, every))
        for number, stacked in enumerate(steps[1::2]):
            for rank, wanted in zip(ranks, stacked, strict=True):
                got = of_ranks[rank][case, algorithm][0][number]
                for one, same in zip(got, wanted, strict=True):
                    assert torch.equal(one, same), (case, algorithm, number, rank)
        # The first rank of a machine keeps the state, if there are several.
        memories = [of_ranks[rank][case, algorithm][1] for rank in ranks]
        if ranks != TWO and algorithm == LPD:
            check_copies(memories[:-1])
        assert memories[-1] == {}


def check_copies(memories):
    """The copies of neighbors equal what these have published, bit by bit."""
    for k, left in enumerate(memories):
        own = memories[(k + 1) % len(memories)]
        for name, copied in own["left"].items():
            assert torch.equal(copied, left["published"][name])
            assert torch.equal(left["right"][name], own["published"][name])


# -- properties ------------------------------------------------------------------------


def agree_by_choco():
    """Take steps of size 0, after a refusal of another graph."""
    with pytest.raises(ValueError, match=r"choco: .*the machines form a ring"):
        make("choco", {**HIERARCHICAL, "topology": bf.RingGraph(3)}, torch.float32)
    model, optimizer = make("choco", HIERARCHICAL, torch.float32)
    optimizer.param_groups[0]["lr"] = 0.0
    for step in range(60):
        take_step(model, optimizer, step)
    return values_of(model, optimizer)


def agree():
    """Take steps of size 0, and one with a value that is not finite."""
    model, optimizer = make(LPD, HIERARCHICAL, torch.float32)
    optimizer.param_groups[0]["lr"] = 0.0
    for step in range(60):
        take_step(model, optimizer, step)
    agreed = values_of(model, optimizer)
    before = memory_of(optimizer)
    if bf.rank() == 0:
        with torch.no_grad():
            model[1][7] = float("nan")
    take_step(model, optimizer, 60)
    with pytest.raises(FloatingPointError, match="'1' on ranks 0, 3"):
        optimizer.synchronize()
    if bf.rank() == 0:
        with torch.no_grad():
            model[1][7] = agreed[1][7]
    take_step(model, optimizer, 61)
    after = values_of(model, optimizer)
    assert all(bool(part.isfinite().all()) for part in after)
    return agreed, before, memory_of(optimizer)


def test_machines_agree_on_the_mean_of_all_ranks_and_name_bad_values():
    of_ranks = run_ranks(4, agree, machines=MACHINES)
    by_choco = run_ranks(4, agree_by_choco, machines=MACHINES)
    starts = [start_of(rank, torch.float32) for rank in EVERYONE]
    for agreed in [*(one[0] for one in of_ranks), *by_choco]:
        for got, parts in zip(agreed, zip(*starts, strict=True), strict=True):
            mean = torch.stack(parts).mean(0)
            torch.testing.assert_close(got, mean, rtol=0, atol=0.02)
    for part, same in zip(of_ranks[0][0], of_ranks[3][0], strict=True):
        assert torch.equal(part, same)
    for moment in (1, 2):
        check_copies([found[moment] for found in of_ranks[:3]])


def fail_to_send():
    """Let the first rank of the second machine fail before its codes are sent."""
    model, optimizer = make(LPD, HIERARCHICAL, torch.float32)
    broken = nullcontext()
    if bf.rank() == 1:
        error = MemoryError("no memory for codes")
        broken = mock.patch.object(CodedDifferences, "start", side_effect=error)
    take_step(model, optimizer, 0)
    optimizer.synchronize()
    with broken:
        take_step(model, optimizer, 1)
        with pytest.raises((MemoryError, bf.MismatchError), match="no memory for code"):
            optimizer.synchronize()
    # Some ranks may have added changes that others have not.
    take_step(model, optimizer, 2)
    with pytest.raises(bf.MismatchError, match=r"rank has no copy of.* begins anew"):
        optimizer.synchronize()


def test_a_rank_that_cannot_send_is_an_error_on_its_neighbors_machines():
    run_ranks(4, fail_to_send, machines=MACHINES)


def mix_states():
    """Load states of other steps and machines, and run out of data."""
    model, optimizer = make(LPD, HIERARCHICAL, torch.float32)
    take_step(model, optimizer, 0)
    early = copy.deepcopy(optimizer.state_dict())
    take_step(model, optimizer, 1)
    late = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(early if bf.rank() == 0 else late)
    take_step(model, optimizer, 2)
    with pytest.raises(bf.MismatchError, match=r"in round [12] of its state, and this"):
        optimizer.synchronize()
    # A state of ranks is none of machines, so all begin anew.
    flat_model, flat = make(LPD, {}, torch.float32)
    for step in range(3):
        take_step(flat_model, flat, step)
    model, optimizer = make(LPD, {**HIERARCHICAL, "uneven_inputs": True}, torch.float32)
    optimizer.load_state_dict(flat.state_dict())
    for step in range(1 + bf.rank()):
        take_step(model, optimizer, step)
    last = optimizer.join()
    return last, algorithm_of(optimizer).state_dict()["progress"], memory_of(optimizer)


def test_states_must_belong_together_and_ranks_may_join():
    of_ranks = run_ranks(4, mix_states, machines=MACHINES)
    assert [last for last, _, _ in of_ranks] == [3] * 4
    assert {progress[1] for _, progress, _ in of_ranks} == {5}
    check_copies([memory for _, _, memory in of_ranks[:3]])
