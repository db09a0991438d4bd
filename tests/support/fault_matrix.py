"""The fault matrix: jobs that go on after faults, and the checks of each.

``make survive`` runs each scenario with each algorithm on its own. tests/faults and
tests/cluster run several algorithms and faults in one job, since starting jobs takes
longest.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from bluecomm.optim.registry import get_algorithm, names_that_survive_losses
from tests.support.cluster import Cluster
from tests.support.launch import Launched, launched
from tests.support.survival import (
    ASYNCHRONOUS,
    LEAVING,
    NOT_COUNTING,
    NOT_MIXING,
    SPARING,
    Hit,
    survival_command,
)

# Values that the ranks have averaged for long enough differ by less.
CONSENSUS = 0.05
SHARED_MEMORY = Path("/dev/shm")


@dataclasses.dataclass(frozen=True)
class Scenario:
    """A job and its faults.

    Attributes:
        name: Its name.
        size: Number of ranks.
        hits: The faults.
        options: More options for bfrun.
    """

    name: str
    size: int
    hits: tuple[Hit, ...]
    options: tuple[str, ...] = ()

    @property
    def failed(self) -> list[int]:
        """The ranks that fail."""
        keep = (*SPARING, LEAVING)
        return sorted({hit.rank for hit in self.hits if hit.how not in keep})

    @property
    def survivors(self) -> list[int]:
        """The ranks that train to the end."""
        left = {hit.rank for hit in self.hits if hit.how == LEAVING}
        return [r for r in range(self.size) if r not in {*self.failed, *left}]


def _kill(*ranks: int) -> tuple[Hit, ...]:
    return tuple(Hit(rank, "kill") for rank in ranks)


SCENARIOS = (
    Scenario("kill-one", 4, _kill(2)),
    Scenario("kill-rank-0", 4, _kill(0)),
    Scenario("kill-half", 8, _kill(1, 2, 4, 7)),
    Scenario("kill-all-but-one", 3, _kill(0, 2)),
    # The second one goes while the others agree on the graph without the first.
    Scenario("kill-in-turn", 4, (Hit(3, "kill", 5), Hit(1, "kill", 9))),
    # Its child keeps all links open.
    Scenario("kill-with-child", 3, (Hit(1, "fork"),)),
    Scenario("stop", 3, (Hit(1, "stop"),)),
    # No rank may be excluded before rank 3 leaves.
    Scenario("only-slow", 4, (Hit(1, "pause"), Hit(2, "late", 8), Hit(3, "leave", 12))),
    # Different errors: two equal ones end the job.
    Scenario(
        "endings",
        6,
        (Hit(1, "raise"), Hit(2, "exit", 8), Hit(3, "_exit", 11), Hit(4, "abort", 14)),
    ),
)
# The same faults in fewer jobs.
PACKED = (
    Scenario("half", 8, _kill(1, 2, 4, 7)),
    Scenario("in-turn", 5, (Hit(3, "kill"), Hit(0, "kill", 9), Hit(1, "fork", 40))),
    Scenario("stop", 4, (Hit(1, "stop"), Hit(2, "kill", 30))),
    # Without the pause, which may take so long on a slow machine that it counts.
    Scenario("late", 4, (Hit(2, "late", 8), Hit(3, "leave", 12))),
    SCENARIOS[-1],
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}


def covered() -> list[str]:
    """Return the algorithms that go on after losses, except the one that is alone."""
    return [name for name in names_that_survive_losses() if name != "local"]


def with_newcomers() -> list[str]:
    """Return those that newcomers may join."""
    return [name for name in covered() if get_algorithm(name).admits_newcomers]


def run_scenario(
    scenario: Scenario,
    algorithms: Sequence[str],
    folder: Path,
    *,
    transport: str = "auto",
    cluster: Cluster | None = None,
    hosts: int = 2,
    meddle: Callable[[Launched], None] | None = None,
) -> None:
    """Run a scenario, and check that the others went on and that nothing is left.

    Args:
        scenario: The job and its faults.
        algorithms: Algorithms that run at the same time.
        folder: For its output.
        transport: Transport between ranks of a machine.
        cluster: Hosts to run it on. Default: this machine.
        hosts: How many of them.
        meddle: Called once the job has started.
    """
    options = ["--on-failure", "continue", *scenario.options, "-np"]
    options += [str(scenario.size), "-x", "OMP_NUM_THREADS=1"]
    if cluster is not None:
        slots = -(-scenario.size // hosts)
        options += ["--ssh-config", str(cluster.ssh_config)]
        names = [f"node{number}:{slots}" for number in range(1, hosts + 1)]
        options += ["-H", ",".join(names)]
    else:
        options += ["--oversubscribe", "-x", f"BLUECOMM_TRANSPORT={transport}"]
    command = survival_command(scenario.hits, algorithms)
    shared = set(SHARED_MEMORY.iterdir())
    with launched(folder, *options, *command) as job:
        if meddle is not None:
            meddle(job)
        code = job.wait()
        assert code == 0, job.out + job.err
        check_survivors(job, scenario, algorithms)
        assert job.left() == {}
        assert job.folders_left() == []
    left = {path.name for path in set(SHARED_MEMORY.iterdir()) - shared}
    assert not any(name.startswith(("bluecomm", "bfrun")) for name in left), left
    if cluster is not None:
        cluster.wait_until_empty()


def check_survivors(
    job: Launched, scenario: Scenario, algorithms: Sequence[str]
) -> None:
    """Check what a job has printed: no rank has lost a step, and all have mixed."""
    for algorithm in algorithms:
        values, updates = set(), set()
        for rank in scenario.survivors:
            pattern = rf"^\[{rank}\] {algorithm}: (\w+) (\S+) (\S+)$"
            said = re.search(pattern, job.out, re.MULTILINE)
            assert said, job.out + job.err
            assert said[1] == "True", f"{algorithm}: the weights do not sum to one"
            values.add(float(said[2]))
            updates.add(float(said[3]))
        wanted = min(updates) if algorithm in NOT_COUNTING else 0.0
        if algorithm not in ASYNCHRONOUS:
            alike = all(abs(one - wanted) < 0.01 for one in updates)
            assert alike, (algorithm, updates)
        distance = max(values) - min(values)
        assert algorithm in NOT_MIXING or distance < CONSENSUS, (algorithm, values)
    goes_on = re.findall(r"^bfrun: rank (\d+) on .*; the job goes on", job.err, re.M)
    assert sorted(map(int, goes_on)) == scenario.failed, job.err
    left = scenario.size - len(scenario.failed)
    if scenario.failed:
        last = job.err.splitlines()[-1]
        assert f"finished with {left} of {scenario.size} ranks; lost" in last, job.err
