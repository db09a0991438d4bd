"""Tests which ranks run on which hosts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bfrun.addresses import Address
from bfrun.config import LaunchConfig
from bfrun.env import Placement
from bfrun.errors import LaunchError
from bfrun.hosts import LOCALHOST, Host
from bfrun.plan import (
    HostFacts,
    LaunchPlan,
    make_plan,
    plan_process,
    with_addresses,
)

EIGHT = HostFacts(tuple(range(8)), (tuple(range(4)), tuple(range(4, 8))))


def plan(*hosts: Host, facts=None, environ=None, **options) -> LaunchPlan:
    config = LaunchConfig(command=("python", "x.py"), hosts=hosts, **options)
    facts = dict.fromkeys(hosts, EIGHT) if facts is None else facts
    return make_plan(config, facts, environ or {})


def rank_counts(made: LaunchPlan) -> dict[str, int]:
    return {each.host.name: len(each.processes) for each in made.hosts}


def variable(made: LaunchPlan, name: str) -> list[str | None]:
    return [spec.environment.get(name) for spec in made.processes]


def test_this_machine_takes_all_ranks():
    made = plan(facts={LOCALHOST: EIGHT}, world_size=4)
    assert rank_counts(made) == {"localhost": 4}
    assert [spec.rank for spec in made.processes] == [0, 1, 2, 3]
    assert made.notes == ()


def test_one_note_when_ranks_exceed_the_cores_of_this_machine():
    (note,) = plan(facts={LOCALHOST: EIGHT}, world_size=9).notes
    assert "9 ranks share 8 cores" in note


def test_this_machine_needs_a_number_of_ranks():
    with pytest.raises(LaunchError, match="number of ranks is not known; give -np N"):
        plan()


def test_hosts_fill_in_order():
    made = plan(Host("a", 2), Host("b", 4), Host("c", 1), world_size=5)
    assert rank_counts(made) == {"a": 2, "b": 3}
    assert [spec.host_index for spec in made.processes] == [0, 0, 1, 1, 1]


def test_without_np_all_slots_are_used():
    assert rank_counts(plan(Host("a", 2), Host("b", 3))) == {"a": 2, "b": 3}


def test_more_ranks_than_slots_is_an_error():
    with pytest.raises(LaunchError, match=r"5 slots \(a: 2, b: 3\).*--oversubscribe"):
        plan(Host("a", 2), Host("b", 3), world_size=6)


def test_oversubscribed_ranks_are_dealt_in_turn():
    made = plan(Host("a", 2), Host("b", 3), world_size=8, oversubscribe=True)
    assert rank_counts(made) == {"a": 4, "b": 4}


def test_host_without_slots_takes_its_gpus_else_its_cores():
    facts = {
        Host("gpus"): HostFacts((0, 1, 2), gpus=("0", "1")),
        Host("cores"): HostFacts((0, 1, 2)),
    }
    made = plan(Host("gpus"), Host("cores"), facts=facts)
    assert rank_counts(made) == {"gpus": 2, "cores": 3}


def test_host_without_slots_and_not_asked_is_an_error():
    with pytest.raises(LaunchError, match=r"is given without slots.*write a:SLOTS"):
        plan(Host("a"), facts={})


def test_machines_are_hosts():
    made = plan(Host("a", 1), Host("b", 2))
    assert variable(made, "BLUECOMM_LOCAL_RANK") == ["0", "0", "1"]
    assert variable(made, "BLUECOMM_LOCAL_SIZE") == ["1", "2", "2"]
    assert variable(made, "BLUECOMM_MACHINE_RANK") == ["0", "1", "1"]
    assert variable(made, "BLUECOMM_MACHINE_SIZE") == ["2", "2", "2"]


def test_ranks_per_machine_cuts_hosts():
    made = plan(Host("a", 3), Host("b", 2), ranks_per_machine=2)
    assert variable(made, "BLUECOMM_MACHINE_RANK") == ["0", "0", "1", "2", "2"]
    assert variable(made, "BLUECOMM_LOCAL_RANK") == ["0", "1", "0", "0", "1"]
    assert variable(made, "BLUECOMM_LOCAL_SIZE") == ["2", "2", "1", "2", "2"]
    assert variable(made, "BLUECOMM_RANKS_PER_MACHINE") == ["2"] * 5


@pytest.mark.parametrize(("ranks", "threads"), [(1, "8"), (3, "2"), (9, "1")])
def test_threads_are_cores_over_ranks_of_the_host(ranks, threads):
    made = plan(Host("a", ranks), ranks_per_machine=2)
    assert set(variable(made, "OMP_NUM_THREADS")) == {threads}


def test_the_rails_of_nccl_are_those_of_each_host():
    a, b = Host("a", 1), Host("b", 1)
    facts = {
        a: HostFacts((0,), addresses=(Address("eth0", "10.0.0.1"),)),
        b: HostFacts((0,), addresses=(Address("ens3", "10.0.0.2"),)),
    }
    chosen = {"enable_net": True, "network_interface": "10.0.0.0/8"}
    made = plan(a, b, facts=facts, **chosen)
    assert variable(made, "NCCL_SOCKET_IFNAME") == ["=eth0", "=ens3"]
    made = plan(a, b, facts=facts, environ={"NCCL_SOCKET_IFNAME": "x"}, **chosen)
    assert variable(made, "NCCL_SOCKET_IFNAME") == ["x", "x"]


def test_threads_that_are_set_stay():
    made = plan(Host("a", 4), environ={"OMP_NUM_THREADS": "7"})
    assert set(variable(made, "OMP_NUM_THREADS")) == {"7"}
    made = plan(Host("a", 4), environment=(("OMP_NUM_THREADS", "5"),))
    assert set(variable(made, "OMP_NUM_THREADS")) == {"5"}


def test_gpus_per_rank():
    facts = {Host("a", 2): HostFacts((0,), gpus=("4", "5", "6", "7"))}
    made = plan(Host("a", 2), facts=facts, gpus_per_rank=2)
    assert variable(made, "CUDA_VISIBLE_DEVICES") == ["4,5", "6,7"]
    assert variable(made, "BLUECOMM_GPUS_PER_RANK") == ["2", "2"]


def test_ranks_may_share_gpus():
    facts = {Host("a", 3): HostFacts((0,), gpus=("4", "5"))}
    made = plan(Host("a", 3), facts=facts, gpus_per_rank=1, share_gpus=True)
    assert variable(made, "CUDA_VISIBLE_DEVICES") == ["4", "5", "4"]
    assert variable(made, "BLUECOMM_SHARE_GPUS") == ["1", "1", "1"]
    with pytest.raises(LaunchError, match=r"needs 9 GPUs for 3 ranks.*--share-gpus"):
        plan(Host("a", 3), facts=facts, gpus_per_rank=3, share_gpus=True)


def test_too_few_gpus():
    with pytest.raises(
        LaunchError, match="host 'a' needs 2 GPUs for 2 ranks, but it has 0"
    ):
        plan(Host("a", 2), gpus_per_rank=1)


def test_bind_to_core_shares_the_cores():
    made = plan(Host("a", 3), bind_to="core")
    assert [spec.cpus for spec in made.processes] == [(0, 1), (2, 3), (4, 5)]


def test_bind_to_core_with_more_ranks_than_cores():
    facts = {Host("a", 3): HostFacts((4, 6))}
    made = plan(Host("a", 3), facts=facts, bind_to="core")
    assert [spec.cpus for spec in made.processes] == [(4,), (6,), (4,)]


def test_bind_to_numa():
    made = plan(Host("a", 4), bind_to="numa")
    low, high = EIGHT.numa
    assert [spec.cpus for spec in made.processes] == [low, low, high, high]


def test_binding_needs_facts():
    with pytest.raises(LaunchError, match="cores of host 'a' are not known"):
        plan(Host("a", 1), facts={}, bind_to="core")


def test_addresses_are_added_per_host():
    made = with_addresses(
        plan(Host("a", 1), Host("b", 1)),
        {Host("a", 1): ("10.0.0.1",), Host("b", 1): ("10.0.0.2", "fd00::2")},
    )
    assert [each.addresses for each in made.hosts] == [
        ("10.0.0.1",),
        ("10.0.0.2", "fd00::2"),
    ]


@given(
    slots=st.lists(st.integers(1, 9), min_size=1, max_size=6),
    extra=st.integers(0, 20),
    cut=st.none() | st.integers(1, 5),
)
def test_every_rank_is_placed_once(slots, extra, cut):
    hosts = [Host(f"h{index}", count) for index, count in enumerate(slots)]
    world_size = sum(slots) + extra
    made = plan(
        *hosts, world_size=world_size, oversubscribe=True, ranks_per_machine=cut
    )
    places = [spec.placement for spec in made.processes]
    assert [place.rank for place in places] == list(range(world_size))
    machines = sorted({place.machine_rank for place in places})
    assert machines == list(range(places[0].machine_world_size))
    for machine in machines:
        mine = [place for place in places if place.machine_rank == machine]
        assert [place.local_rank for place in mine] == list(range(len(mine)))
        assert {place.local_world_size for place in mine} == {len(mine)}
        assert cut is None or len(mine) <= cut


def test_a_job_that_may_grow_has_room_on_further_hosts():
    hosts = (Host("a", 2), Host("b", 4), Host("c", 1))
    made = plan(*hosts, world_size=1, max_np=5)
    assert rank_counts(made) == {"a": 1, "b": 0}
    assert [host.slots for host in made.hosts] == [2, 3]
    # Later ranks share the cores with the first.
    assert variable(made, "OMP_NUM_THREADS") == ["4"]
    made = plan(*hosts, max_np=5)
    assert rank_counts(made) == {"a": 2, "b": 3}
    made = plan(*hosts, world_size=2, host_discovery_script="x")
    assert [host.slots for host in made.hosts] == [2, 4, 1]


def test_a_rank_that_starts_later_gets_the_cores_of_its_slot():
    config = LaunchConfig(("x",), 1, (Host("a", 2),), bind_to="core", max_np=2)
    (host,) = make_plan(config, {Host("a", 2): EIGHT}, {}).hosts
    placement = Placement(3, 4, 1, 2, 0, 1)
    spec = plan_process(config, host, 1, placement, {})
    assert (spec.rank, spec.cpus) == (3, (4, 5, 6, 7))
    assert spec.environment["BLUECOMM_LOCAL_RANK"] == "1"
