"""Tests how Slurm's variables are read."""

import pytest

from bfrun.allocation import expand_hostlist, is_in_allocation, read_allocation
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.choose import choose_launcher
from bfrun.launch.per_host import PerHostLauncher
from bfrun.launch.slurm import SlurmLauncher

JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_JOB_CPUS_PER_NODE": "8,4",
    "SLURM_TASKS_PER_NODE": "3,1",
}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("vm", ["vm"]),
        ("a,b-1.x", ["a", "b-1.x"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("n[08-10,12],m", ["n08", "n09", "n10", "n12", "m"]),
        ("r[1-2]n[0-1]", ["r1n0", "r1n1", "r2n0", "r2n1"]),
        ("x[5]-ib", ["x5-ib"]),
    ],
)
def test_hostlists_are_expanded(text, names):
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    "text",
    ["", "a,", "a[1", "a1]", "a[]", "a[x]", "a[3-1]", "a[1-99999999]", "a b", "[[1]]"],
)
def test_text_that_is_not_a_hostlist_is_refused(text):
    with pytest.raises(LaunchError, match="not a list of hosts"):
        expand_hostlist(text)


def test_slots_are_the_tasks_that_were_asked_for():
    found = read_allocation({**JOB, "SLURM_NTASKS": "4"})
    assert found.hosts == (Host("node1", 3), Host("node2", 1))
    assert list(found.cpus.values()) == [8, 4]
    assert found.job == "7"


def test_without_a_number_of_tasks_each_host_says_its_own_slots():
    assert read_allocation(JOB).hosts == (Host("node1"), Host("node2"))


@pytest.mark.parametrize("counts", ["", "3", "3(x3)", "0(x2)", "x,y", "1,2,3"])
def test_counts_that_do_not_fit_are_refused(counts):
    environ = {**JOB, "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": counts}
    with pytest.raises(LaunchError, match=r"SLURM_TASKS_PER_NODE .* each of the 2"):
        read_allocation(environ)


def test_repeated_counts():
    environ = {**JOB, "SLURM_NTASKS": "4", "SLURM_TASKS_PER_NODE": "2(x2)"}
    assert [host.slots for host in read_allocation(environ).hosts] == [2, 2]


def test_one_of_many_tasks_is_refused():
    environ = {**JOB, "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
    with pytest.raises(LaunchError, match="one of 4 tasks of srun"):
        read_allocation(environ)
    environ["SLURM_STEP_NUM_TASKS"] = "1"
    assert read_allocation(environ).job == "7"


def test_a_heterogeneous_job_is_refused():
    with pytest.raises(LaunchError, match="heterogeneous"):
        read_allocation({**JOB, "SLURM_HET_SIZE": "2"})


def test_a_job_number_alone_is_no_allocation():
    assert not is_in_allocation({"SLURM_JOB_ID": "7"})
    with pytest.raises(LaunchError, match="run bfrun in a batch script"):
        read_allocation({"SLURM_JOB_ID": "7"})


def choose(environ, **settings):
    choice = choose_launcher(LaunchConfig(("true",), **settings), environ)
    choice.launcher.close()
    return choice


def test_an_allocation_is_used_where_no_hosts_are_named():
    choice = choose(JOB)
    assert isinstance(choice.launcher, SlurmLauncher)
    assert choice.config.hosts == (Host("node1"), Host("node2"))
    assert choice.remote == {Host("node1"), Host("node2")}
    for other in (choose(JOB, hosts=(Host("localhost", 1),)), choose({})):
        assert isinstance(other.launcher, PerHostLauncher)
    assert isinstance(choose(JOB, launcher="local").launcher, PerHostLauncher)


def test_hosts_may_be_picked_from_the_allocation():
    choice = choose(JOB, launcher="slurm", hosts=(Host("node2", 9),))
    assert choice.remote == {Host("node2", 9)}
    command = choice.launcher.command(Host("node2", 9))
    assert "--nodelist=node2" in command
    assert "--cpus-per-task=4" in command
    with pytest.raises(
        LaunchError, match=r"'node3' does not belong to Slurm job 7, .*node1"
    ):
        choose(JOB, launcher="slurm", hosts=(Host("node3"),))


def test_a_missing_srun_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "/nowhere")
    choice = choose(JOB)
    with pytest.raises(LaunchError, match="srun cannot be started"):
        choice.launcher.start(Host("node1"), ["true"], 1.0)
