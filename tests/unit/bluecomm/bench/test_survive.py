"""``survive``: step logs, what is judged from them, and the report."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
import time

import pytest

from bluecomm.bench.__main__ import main
from bluecomm.bench.survival import leftovers, step_log
from bluecomm.bench.survival.faults import BY_NAME, NONE
from bluecomm.bench.survival.goodput import (
    Goodput,
    pace_of_median,
    progress_per_s,
    rank_steps_per_s,
)
from bluecomm.bench.survival.job import Command, JobEffort, ObservedJob, run_job
from bluecomm.bench.survival.joins import HOSTS, JoinPause, judge_join
from bluecomm.bench.survival.leftovers import count_left
from bluecomm.bench.survival.outcome import JobRecord, expected_values, judge
from bluecomm.bench.survival.plot import draw_gaps
from bluecomm.bench.survival.report import SurvivalReport, verdict
from bluecomm.bench.survival.speed import Cost
from bluecomm.bench.survival.step_log import (
    Beginning,
    Step,
    StepLog,
    StepWriter,
    note_beginning,
    read_beginning,
    read_logs,
)
from bluecomm.bench.survival.torchrun import PeerOutcome
from tests.support.deadlines import DEADLINE_S

MS = 1_000_000
KILL = BY_NAME["kill"]
EXPECTED = {number: float(number) for number in range(11)}


def log(rank, end_ms, *, without=(), again=(), more=0.0):
    """Return the log of a rank; ``end_ms`` is a list, or one step every 50 ms."""
    steps = []
    for number, end in enumerate(end_ms):
        value = number + (more if number > 5 else 0.0)
        copies = (number not in without) + (number in again)
        steps += [Step(number, round(end * MS), value, value)] * copies
    return StepLog(rank, 100 + rank, tuple(steps))


EVEN = [50.0 * number for number in range(11)]
VICTIM = log(2, EVEN[:5])


def record(*logs, **changes):
    fields = {
        "label": "d2",
        "transport": "shm",
        "steps": 10,
        "logs": logs,
        "fault_ns": 210 * MS,
        "gone": {2},
        "exit_code": 0,
        "left": 0,
    }
    return JobRecord(**{**fields, **changes})


def test_a_log_is_read_up_to_its_last_whole_record(tmp_path):
    writer = StepWriter(tmp_path, 3)
    writer.note(0, [0.0, 0.0])
    writer.note(1, [1.0, 2.0])
    writer.close()
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes() + b"half")
    (found,) = read_logs(tmp_path)
    assert (found.rank, len(found.steps)) == (3, 2)
    assert found.steps[1][2:] == (1.0, 2.0)
    assert found.steps[0].end_ns <= found.steps[1].end_ns


def test_the_gap_is_the_time_beyond_a_step():
    late = [*EVEN[:6], *(end + 120 for end in EVEN[6:])]
    found = judge(record(log(0, EVEN), log(1, late), VICTIM), KILL, EXPECTED)
    assert found.step_ms == pytest.approx(50)
    assert found.gap_ms == pytest.approx(120)
    assert found.goes_on
    assert verdict(found) == "ok"
    assert verdict(dataclasses.replace(found, gap_ms=251)) == "over the limit"


def test_gaps_before_the_fault_and_after_the_first_end_do_not_count():
    slow_start = [0.0, *(end + 400 for end in EVEN[1:])]
    slow_end = [*slow_start[:-1], slow_start[-1] + 700]
    job = record(log(0, slow_start), log(1, slow_end), VICTIM, fault_ns=610 * MS)
    assert judge(job, KILL, EXPECTED).gap_ms == pytest.approx(0)


@pytest.mark.parametrize(
    ("survivor", "lost", "double"),
    [
        (log(1, EVEN), 0, 0),
        (log(1, EVEN, without=[7]), 1, 0),
        (log(1, EVEN, again=[7]), 0, 1),
        (log(1, EVEN, more=1.0), 0, 1),
        (log(1, EVEN, more=-2.0), 2, 0),
    ],
    ids=["none", "missing", "again", "applied twice", "two not applied"],
)
def test_each_step_is_counted(survivor, lost, double):
    found = judge(record(log(0, EVEN), survivor, VICTIM), KILL, EXPECTED)
    assert (found.lost_steps, found.double_steps) == (lost, double)
    assert found.goes_on is not bool(lost or double)
    assert verdict(found) == ("FAILED" if lost or double else "ok")


def test_weights_that_do_not_sum_to_one_are_noticed():
    off = log(1, EVEN, more=0.2)
    found = judge(record(log(0, EVEN), off, VICTIM), KILL, EXPECTED)
    assert found.drift == pytest.approx(0.2)
    assert not found.goes_on


@pytest.mark.parametrize("name", ["short-pause", "late", "load", "detach", "loss"])
def test_ranks_that_were_only_slow_may_not_be_excluded(name):
    fault = BY_NAME[name]
    logs = [log(rank, EVEN) for rank in (0, 1, 3)]
    assert judge(record(*logs, log(2, EVEN)), fault, EXPECTED).excluded == 1
    assert judge(record(*logs, VICTIM, gone=()), fault, EXPECTED).excluded == 1
    assert judge(record(*logs, log(2, EVEN), gone=()), fault, EXPECTED).excluded == 0


@pytest.mark.parametrize(
    "change",
    [{"exit_code": 137}, {"exit_code": None}, {"left": 1}, {"lines_lost": 1}],
)
def test_the_end_of_the_job_counts(change):
    job = record(log(0, EVEN), log(1, EVEN), VICTIM, **change)
    assert verdict(judge(job, KILL, EXPECTED)) == "FAILED"


def steps(rank, first, begin_ms, end_ms):
    """Return the log of a process with one step every 50 ms."""
    ends = range(begin_ms, end_ms + 1, 50)
    each = [Step(n, end * MS, n, n) for n, end in enumerate(ends, first)]
    return StepLog(rank, begin_ms, tuple(each))


def test_the_pace_is_that_of_the_median_survivor_of_each_time():
    # Rank 1 is killed at 1 s and is back at 1.5 s, rank 2 is killed at 2 s.
    logs = [
        *(steps(0, 0, 0, 3100), steps(3, 0, 0, 3100), steps(2, 0, 0, 1990)),
        *(steps(1, 0, 0, 990), steps(1, 30, 1500, 3100)),
    ]
    times = [1000 * MS, 2000 * MS, 3000 * MS]
    assert pace_of_median(logs, times) == pytest.approx(20)
    # Ranks 0 and 3 make 40 steps, and the others 19, 30 and 0.
    assert rank_steps_per_s(logs, times) == pytest.approx((40 + 40 + 19 + 30) / 2)


def test_steps_that_a_restart_has_undone_do_not_count():
    logs = [steps(rank, 0, 0, 990) for rank in (0, 1)]
    logs += [steps(rank, 10, 2000, 3100) for rank in (0, 1)]
    times = [500 * MS, 3000 * MS]
    # From step 10 to step 30.
    assert progress_per_s(logs, times) == pytest.approx(20 / 2.5)
    # The restart ends later, and goes back to step 10, which was done at 500 ms.
    assert progress_per_s(logs, [300 * MS, 1500 * MS]) == pytest.approx(4 / 1.2)


def test_the_pause_at_a_join_is_counted_from_the_init_of_the_newcomer():
    late = [*(50 * n for n in range(20)), *(1070 + 50 * n for n in range(20))]
    other = StepLog(0, 1, tuple(Step(n, end * MS, n, n) for n, end in enumerate(late)))
    newcomer = steps(2, 20, 1100, 1500)
    command = Command("d2", "shm", [], {})
    begun = Beginning(process_ns=100 * MS, init_ns=1000 * MS)
    found = judge_join(command, "4x1M", [other, steps(1, 0, 0, 2000)], newcomer, begun)
    assert found.gap_ms == pytest.approx(70)
    assert found.import_gap_ms == pytest.approx(70)
    assert found.import_s == pytest.approx(0.9)
    assert found.first_step_s == pytest.approx(0.15)
    assert (found.ranks, found.limit_ms) == (3, 100)
    begun = begun._replace(init_ns=1080 * MS)
    found = judge_join(command, "4x1M", [other], newcomer, begun)
    assert found.gap_ms == pytest.approx(0)
    assert dataclasses.replace(found, algorithm="diloco").limit_ms == 250
    assert dataclasses.replace(found, transport=HOSTS).limit_ms is None


def test_a_process_knows_when_it_was_started(tmp_path):
    note_beginning(tmp_path, 3)
    found = read_beginning(tmp_path, StepLog(3, os.getpid(), ()))
    assert 0 < found.process_ns < found.init_ns <= time.monotonic_ns()


def test_the_last_process_of_a_rank_is_the_one_that_began_last(tmp_path):
    for number, value in ((7, 0.0), (2, 1.0)):
        writer = StepWriter(tmp_path, 3)
        writer.note(number, [value])
        writer.close()
        (path,) = tmp_path.glob(f"3-{os.getpid()}.steps")
        path.rename(tmp_path / f"3-{number}.steps")
    assert [log.pid for log in read_logs(tmp_path)] == [7, 2]


def test_a_job_has_a_number_of_steps_or_is_ended():
    effort = JobEffort(before=20, after=60, step_ms=50.0, layers="4x1M")
    assert effort.with_steps_for(3600).steps == 20 + 72_000
    assert not effort.admits_newcomers
    assert effort.lasting(3600).steps == 0
    assert not effort.lasting(3600).admits_newcomers
    open_ended = dataclasses.replace(effort, after=0)
    assert (open_ended.steps, open_ended.admits_newcomers) == (0, True)


# Two ranks in one process, which train until SIGUSR1, and forever without it.
UNTIL_NOTICE = """
import json, pathlib, runpy, signal, sys
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
work = json.loads(sys.argv[-1])
assert work["steps"] == 0 and not work["admits_newcomers"]
writer = runpy.run_path(sys.argv[1])["StepWriter"]
writers = [writer(pathlib.Path(work["folder"]), rank) for rank in (0, 1)]
number = 0
while True:
    for each in writers:
        each.note(number, [number])
    if signal.sigtimedwait([signal.SIGUSR1], 0.001):
        sys.exit()
    number += 1
"""


def test_a_job_that_lasts_by_the_clock_ends_by_a_notice():
    launcher = [sys.executable, "-c", UNTIL_NOTICE, step_log.__file__]
    command = Command("d2", "shm", launcher, {})
    fault = dataclasses.replace(NONE, ranks=2)
    effort = JobEffort(before=5, after=60, step_ms=50.0, layers="4x1M")
    found = run_job(command, fault, effort.lasting(0.1))
    assert (found.exit_code, found.steps) == (0, 0)
    outcome = judge(found, fault, {})
    assert (outcome.lost_steps, outcome.excluded) == (0, 0)


def test_ranks_must_reach_the_last_step_of_any_survivor_after_a_notice():
    load = BY_NAME["load"]
    logs = [log(rank, EVEN) for rank in range(3)]
    changes = {"steps": 0, "gone": ()}
    found = judge(record(*logs, log(3, EVEN), **changes), load, EXPECTED)
    assert (found.lost_steps, found.excluded) == (0, 0)
    found = judge(record(*logs, log(3, EVEN[:-1]), **changes), load, EXPECTED)
    assert (found.lost_steps, found.excluded) == (1, 1)
    # The first rank at the last step ends the measurement of gaps.
    late = [*EVEN[:-1], EVEN[-1] + 700]
    found = judge(record(*logs, log(3, late), **changes), load, EXPECTED)
    assert found.gap_ms == pytest.approx(0)
    silent = [StepLog(rank, 100 + rank, ()) for rank in range(4)]
    assert judge(record(*silent, **changes), load, EXPECTED).excluded == 4


def test_expected_values_are_those_of_all_ranks():
    assert expected_values([log(0, EVEN), log(1, EVEN)]) == EXPECTED
    with pytest.raises(ValueError, match=r"rank 1, step 6: .*another rank has 6.0"):
        expected_values([log(0, EVEN), log(1, EVEN, more=0.5)])


def test_a_child_without_an_environment_is_being_started():
    assert not leftovers._is_starting()
    with subprocess.Popen(["sleep", "1000"], env={}) as child:
        assert leftovers._is_starting()
        child.kill()
        child.wait(DEADLINE_S)
        assert not leftovers._is_starting()


def test_leftovers_are_counted_by_name(tmp_path):
    assert count_left("no such mark", tmp_path) == 0
    (tmp_path / "bfrun-1").mkdir()
    (tmp_path / "logs").mkdir()
    assert count_left("no such mark", tmp_path) == 1


def test_a_job_that_was_being_started_is_removed(monkeypatch):
    jobs = []

    def launch_and_leave(self, command):
        sleeping = [sys.executable, "-c", "import time; time.sleep(1000)"]
        jobs.append((self._folder, subprocess.Popen(sleeping, env=self._environ)))
        sys.exit(143)

    monkeypatch.setattr(ObservedJob, "_launch", launch_and_leave)
    with pytest.raises(SystemExit, match=r"^143$"):
        ObservedJob(Command("d2", "shm", [], {}), KILL, JobEffort(1, 1, 1.0, "1x4"))
    folder, process = jobs[0]
    assert process.wait(DEADLINE_S) == -signal.SIGKILL
    assert not folder.exists()


@pytest.fixture
def report():
    outcomes = [
        judge(record(log(0, EVEN), VICTIM, transport=transport), fault, EXPECTED)
        for fault in (KILL, BY_NAME["late"])
        for transport in ("shm", "tcp")
    ]
    about = {"step_ms": 50.0, "cores": 2, "load_before": 0.5, "load_after": 3.25}
    return SurvivalReport(
        about=about,
        outcomes=outcomes,
        costs=[Cost("d2", "shm", 4, 3, 10.1, 10.0, 0.01)],
        goodputs=[Goodput("d2", "tcp", 8, 9, 10.0, 19.0, 19.5, 0.75)],
        joins=[JoinPause("d2", "shm", "4x1M", 3, 51.0, 62.0, 8.0, 1.5, 2.5)],
        peers=[PeerOutcome("torchrun", "kill", 4, False, 5.4, 0, "ends with 1")],
        not_covered=["gossip_pga"],
    )


def test_the_report_is_read_as_it_was_written(report, tmp_path):
    report.write(tmp_path / "survive.json")
    assert SurvivalReport.read(tmp_path / "survive.json") == report


def test_the_report_names_faults_limits_and_what_is_not_covered(report, capsys):
    report.print()
    shown = capsys.readouterr().out
    for text in (
        "kill -9 of one of 4",
        " 250 ",
        "steps of 50 ms, 2 cores, load 0.5 to 3.2",
        "+1.00 %",
        "97.4 %",
        "pauses of the others at a join",
        "torchrun, kill -9 of one of 4: has ended after 5.4 s",
        "not covered: gossip_pga",
    ):
        assert text in shown, shown


@pytest.mark.parametrize(
    ("label", "limit"), [("d2", 0.97), ("allreduce:atc", 0.9), ("local_sgd", 0.9)]
)
def test_survivors_that_agree_first_may_be_slower(label, limit, report):
    found = dataclasses.replace(report.goodputs[0], algorithm=label)
    assert found.limit == limit
    assert dataclasses.replace(found, algorithm="ddp").limit is None


def test_the_plot_has_a_panel_for_each_fault(report):
    pytest.importorskip("matplotlib")
    figure = draw_gaps(report)
    assert [axes.get_title() for axes in figure.axes] == [
        "kill -9 of one of 4",
        "one step takes 2 s more",
    ]
    with pytest.raises(ValueError, match="there are no gaps to draw"):
        draw_gaps(dataclasses.replace(report, outcomes=[]))


def test_wrong_command_lines(capsys, monkeypatch, tmp_path):
    assert main(["survive", "--faults", "--plot", str(tmp_path / "a.png")]) == 2
    assert "--plot draws the gaps after faults" in capsys.readouterr().err
    monkeypatch.setenv("BLUECOMM_AGENT_SOCKET", "/tmp/socket")
    assert main(["survive"]) == 2
    assert "start it without bfrun" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["survive", "--faults", "flood"])
    assert "invalid choice: 'flood'" in capsys.readouterr().err


def test_nothing_fails_without_a_victim():
    assert not NONE.victims
    assert NONE.spares_all


def test_what_was_measured_before_a_failure_is_reported(capsys, monkeypatch, tmp_path):
    pace = Goodput("gradient_allreduce", "shm", 8, 8, 10.0, 9.5, 10.0, 0.9)

    def fails(*arguments):
        raise RuntimeError("rank 4 did not train again")

    monkeypatch.setattr("bluecomm.bench.survive.measure_goodput", lambda *_: pace)
    monkeypatch.setattr("bluecomm.bench.survive.measure_restarts", fails)
    path = tmp_path / "results.json"
    options = ["--faults", "--goodput-every", "10", "--peers", "--transports", "shm"]
    options += ["--algorithms", "gradient_allreduce", "--json", str(path)]
    assert main(["survive", *options]) == 1
    assert SurvivalReport.read(path).goodputs == [pace]
    text = "the rest was not measured: rank 4 did not train again"
    assert text in capsys.readouterr().err
