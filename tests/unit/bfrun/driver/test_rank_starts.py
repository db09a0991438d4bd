"""Ranks that are started while the job runs, and those that must leave it."""

import signal
from dataclasses import replace

import pytest

from bfrun.config import LaunchConfig
from bfrun.driver.admissions import Admissions
from bfrun.driver.membership import Membership
from bfrun.driver.rank_starts import EXIT_S, LEAVE_S, RankStarts
from bfrun.driver.respawn import MAX_LOSSES
from bfrun.driver.start_frames import StartFrames
from bfrun.frames.driver_to_agent import SignalRanks, Start
from bfrun.frames.driver_to_rank import LeaveNotice
from bfrun.hosts import Host
from bfrun.plan import HostFacts, HostPlan, make_plan

A, B = Host("a", 2), Host("b", 2)


class Job:
    """A driver without agents; it is also the router.

    Args:
        ranks: Number of ranks at the start, on the hosts a and b.
        settings: More settings.
    """

    def __init__(self, ranks, **settings):
        self.config = LaunchConfig(
            ("x",),
            ranks,
            (A, B),
            on_failure="continue",
            respawn=True,
            host_discovery_script="hosts.sh",
            **settings,
        )
        facts = dict.fromkeys((A, B), HostFacts((0, 1)))
        plan = make_plan(self.config, facts, {})
        self.membership = Membership.of(plan.host_of_rank)
        self.admissions = Admissions(ranks)
        self.sent, self.said, self.host_of = [], [], {}
        self.starts = RankStarts(
            plan, self.config, self.membership, self.admissions, self, self.say
        )
        frames = StartFrames(plan, self.config, job="a", secret="b", master_port=1)
        self.starts.start_with(frames)
        for rank in range(ranks):
            self.admissions.set_willing(rank, True, True)

    def say(self, text):
        self.said.append(text)

    def to_ranks(self, ranks, frame):
        self.sent.append((*ranks, frame))

    def to_agent_of(self, rank, frame):
        self.sent.append((rank, frame))

    def move(self, rank, host):
        self.host_of[rank] = host

    def end(self, rank, status):
        """End the process of a rank, with all of its output."""
        frames = self.membership.exited(rank, status)
        assert frames
        self.admissions.ended(rank)
        if status == 0:
            self.starts.finished(rank)
        else:
            assert self.membership.outlive(rank)
            self.starts.lost(rank, 0.0)
        self.starts.has_ended(rank)

    def join(self, rank):
        """Have a newcomer join at once."""
        self.membership.joined(rank)
        self.admissions.present.add(rank)
        self.admissions.size = max(self.admissions.size, rank + 1)
        self.admissions.set_willing(rank, True, True)
        self.starts.joined(rank)


def kill(*ranks):
    return SignalRanks(signum=int(signal.SIGKILL), ranks=[*ranks])


def test_free_slots_get_ranks_once_all_can_let_them_in():
    job = Job(2, max_np=3)
    job.admissions.set_willing(1, True, False)
    assert job.starts.step(0.0) == []
    job.admissions.set_willing(1, True, True)
    assert job.starts.step(0.0) == [2]
    ((rank, frame),) = job.sent
    (command,) = frame.processes
    assert (rank, type(frame), command.rank) == (2, Start, 2)
    welcome = command.welcome
    assert (welcome.host, welcome.rank, welcome.size, welcome.stay) == ("b", 2, 3, 1)
    assert welcome.grows
    assert command.env["BLUECOMM_LOCAL_RANK"] == "0"
    assert job.host_of == {2: 1}
    assert job.said == ["bfrun: starting rank 2 on b"]
    assert job.starts.step(0.0) == []


def test_a_rank_whose_slot_is_no_longer_listed_leaves():
    job = Job(4)
    job.starts.use_hosts([A, Host("b", 1)])
    assert job.starts.step(0.0) == []
    assert job.sent == [(3, LeaveNotice())]
    # It is told again when it can take part in joins.
    job.starts.is_willing(3)
    job.starts.is_willing(2)
    assert job.sent == 2 * [(3, LeaveNotice())]
    job.end(3, 0)
    assert "rank 3 on b (pid 0) has left; the job goes on with 3 of 4" in job.said[-1]
    # The slot comes back.
    job.starts.use_hosts([A, B])
    assert job.starts.step(0.0) == [3]


def test_a_rank_that_does_not_leave_is_killed():
    job = Job(4)
    job.starts.use_hosts([A, Host("b", 1)])
    job.starts.step(0.0)
    job.sent.clear()
    job.starts.step(LEAVE_S - 0.1)
    assert job.sent == []
    for now in (LEAVE_S, LEAVE_S + 1):
        job.starts.step(now)
    assert job.sent == [(3, kill(3))]
    job.end(3, -9)
    job.starts.step(100.0)
    assert job.sent == [(3, kill(3))]


def test_a_rank_that_has_shut_down_has_more_time_to_end():
    job = Job(4)
    job.starts.use_hosts([A, Host("b", 1)])
    job.starts.step(0.0)
    job.sent.clear()
    job.membership.goodbye(3)
    job.starts.step(LEAVE_S + EXIT_S - 0.1)
    assert job.sent == []
    job.starts.step(LEAVE_S + EXIT_S)
    assert job.sent == [(3, kill(3))]
    assert job.said[-1] == "bfrun: rank 3 has not left within 90 s"


def test_a_newcomer_whose_slot_ends_is_killed():
    job = Job(3)
    assert job.starts.step(0.0) == [3]
    job.starts.use_hosts([A, Host("b", 1)])
    job.starts.step(0.0)
    assert job.sent[-1] == (3, kill(3))


def test_a_slot_that_comes_and_goes_stays_open():
    """Its newcomers are killed before they have joined, which is not their fault."""
    job = Job(3)
    for now in range(2 * MAX_LOSSES):
        job.starts.use_hosts([A, B])
        assert job.starts.step(now) == [3]
        job.starts.use_hosts([A, Host("b", 1)])
        job.starts.step(now)
        assert job.sent[-1] == (3, kill(3))
        job.end(3, -9)
    assert not any("stays empty" in text for text in job.said)


@pytest.mark.parametrize("most", [None, 4])
def test_the_last_rank_stays_until_another_one_has_joined(most):
    job = Job(2, max_np=most)
    job.starts.use_hosts([B])
    job.starts.step(0.0)
    assert (1, LeaveNotice()) in job.sent
    assert (0, LeaveNotice()) not in job.sent
    job.end(1, 0)
    job.starts.step(0.0)
    assert (0, LeaveNotice()) not in job.sent
    newcomer = max(job.membership.members)
    assert newcomer >= 2
    job.join(newcomer)
    job.starts.step(0.0)
    assert (0, LeaveNotice()) in job.sent


def test_a_rank_stays_while_the_others_leave_although_their_slots_are_back():
    job = Job(4)
    job.starts.use_hosts([A])
    job.starts.step(0.0)
    assert job.sent == [(2, LeaveNotice()), (3, LeaveNotice())]
    job.starts.use_hosts([B])
    job.starts.step(2.0)
    assert job.sent[2:] == [(1, LeaveNotice())]
    for rank in (1, 2, 3):
        job.end(rank, 0)
    started = job.starts.step(3.0)
    assert started == [2, 3]
    assert (0, LeaveNotice()) not in job.sent
    job.join(2)
    job.starts.step(4.0)
    assert job.sent[-1] == (0, LeaveNotice())


def named(job):
    """Return the hosts that need agents."""
    return job.starts.missing_hosts(lambda host: True)


def add(job, host, **settings):
    plan = HostPlan(0, host, (), ("10.0.0.3",), slots=host.slots, **settings)
    return job.starts.add_host(plan)


def test_a_host_that_is_new_to_the_job_gets_ranks_once_it_has_an_agent():
    job = Job(4)
    c, d = Host("c", 1), Host("d", 4)
    job.starts.use_hosts([A, c, B, d])
    assert named(job) == [c, d]
    assert job.starts.step(0.0) == []
    assert add(job, c).index == 2
    assert named(job) == [d]
    assert [plan.host for plan in job.starts.hosts] == [A, B, c]
    assert job.starts.step(0.0) == [4]
    assert job.host_of == {4: 2}
    welcome = job.sent[-1][1].processes[0].welcome
    assert (welcome.host, welcome.addresses) == ("c", ["10.0.0.3"])
    assert (welcome.machine_rank, welcome.machine_size) == (2, 3)


def test_a_host_keeps_its_agent_while_it_is_not_named():
    job = Job(4)
    c = Host("c", 1)
    job.starts.use_hosts([A, B, c])
    add(job, c)
    assert job.starts.step(0.0) == [4]
    job.join(4)
    job.starts.use_hosts([A, B])
    job.starts.step(1.0)
    assert job.sent[-1] == (4, LeaveNotice())
    job.end(4, 0)
    job.starts.use_hosts([A, B, c])
    assert named(job) == []
    assert job.starts.step(2.0) == [4]


def test_no_more_hosts_are_added_than_the_job_needs():
    job = Job(4, max_np=5)
    c, d = Host("c", 1), Host("d", 1)
    job.starts.use_hosts([A, B, c, d])
    assert named(job) == [c]
    # Others take the parts of a host that has failed, and of slots that stay empty.
    assert job.starts.missing_hosts(lambda host: host != c) == [d]
    job.starts.not_started(3)
    assert named(job) == [c, d]


def test_a_host_whose_agent_was_lost_may_get_another_one():
    job = Job(4)
    assert not job.starts.agent_lost(0)  # the script has not named it
    job = Job(4)
    job.starts.use_hosts([A, B])
    assert job.starts.agent_lost(1)
    assert not job.starts.agent_lost(1)
    assert named(job) == [B]
    for rank in (2, 3):
        job.membership.agent_lost([rank], "cut")
        job.membership.outlive(rank)
        job.starts.lost(rank, 0.0)
    assert job.starts.step(100.0) == []
    add(job, B)
    assert named(job) == []
    assert job.starts.step(100.0) == [2, 3]
    assert job.host_of == {2: 2, 3: 2}
    # The driver still sees that the first agent is lost.
    assert not job.starts.agent_lost(1)
    assert job.starts.ranks_on(1) == []


def test_a_slot_without_gpus_stays_empty():
    job = Job(4)
    object.__setattr__(job.config, "gpus_per_rank", 1)
    job.end(3, -9)
    assert job.starts.step(5.0) == []
    assert "bfrun: a slot of b stays empty: --gpus-per-rank 1: host 'b'" in job.said[-1]
    count = len(job.said)
    job.starts.step(6.0)
    assert len(job.said) == count


def test_numbers_have_no_gap_after_a_slot_that_stays_empty():
    job = Job(2)
    gpus = HostFacts((0, 1), gpus=("0", "1", "2"))
    hosts = job.starts._hosts
    job.starts._hosts = (replace(hosts[0], facts=gpus), hosts[1])
    object.__setattr__(job.config, "gpus_per_rank", 1)
    job.starts.use_hosts([B, Host("a", 3)])
    for _ in range(2):
        assert job.starts.step(5.0) == []
    assert job.starts.step(5.0) == [2]
    (frame,) = job.sent[-1][1].processes
    assert frame.env["CUDA_VISIBLE_DEVICES"] == "2"
    assert frame.welcome.local_size == 3


@pytest.mark.parametrize("setting", [{"bind_to": "numa"}, {"gpus_per_rank": 1}])
def test_a_host_may_get_more_slots_than_it_had_at_the_start(setting):
    """It has cores for them, but no GPUs."""
    job = Job(4)
    for name, value in setting.items():
        object.__setattr__(job.config, name, value)
    gpus = HostFacts((0, 1), gpus=("0", "1"))
    job.starts._hosts = tuple(replace(one, facts=gpus) for one in job.starts._hosts)
    job.starts.use_hosts([Host("a", 3), B])
    found = job.starts.step(0.0)
    if "bind_to" in setting:
        assert found == [4]
        assert job.sent[-1][1].processes[0].cpus == [0, 1]
    else:
        assert found == []
        assert "host 'a' needs 3 GPUs for 3 ranks, but it has 2" in job.said[-1]


def test_no_rank_starts_on_a_lost_host():
    job = Job(4)
    job.starts.agent_lost(1)
    for rank in (2, 3):
        job.membership.agent_lost([rank], "cut")
        job.membership.outlive(rank)
        job.starts.lost(rank, 0.0)
    assert job.starts.step(100.0) == []
    assert job.starts.ranks_on(1) == [2, 3]
    # Their numbers are free for other slots.
    job.starts.use_hosts([Host("a", 3)])
    assert job.starts.step(100.0) == [2]
