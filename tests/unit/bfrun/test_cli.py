"""Tests the command line: settings, exit codes, and the output of --dry-run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import bfrun.cli
import bfrun.notebook.cli
from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host


@pytest.fixture
def parse(monkeypatch):
    """Return a function that returns the settings for its arguments."""

    def parse(*arguments: str) -> LaunchConfig:
        seen: list[LaunchConfig] = []

        def start(config: LaunchConfig) -> int:
            seen.append(config)
            return 0

        monkeypatch.setattr(bfrun.cli, "start", start)
        assert bfrun.cli.main(arguments) == 0
        (config,) = seen
        return config

    return parse


@pytest.mark.parametrize(
    ("launcher", "environ"),
    [("mpi", {}), ("slurm", {"SLURM_JOB_ID": "1"})],
)
def test_launchers_that_end_jobs_are_refused(launcher, environ, monkeypatch, capfd):
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    options = ["--on-failure", "continue", "--launcher", launcher, "-np", "2", "true"]
    assert bfrun.cli.main(options) == 1
    text = f"--on-failure continue does not cover the launcher '{launcher}' yet"
    assert text in capfd.readouterr().err


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--respawn"], "--respawn is for jobs that go on after a failure"),
        (["--min-np", "2"], "--min-np is for jobs that go on after a failure"),
        (["--elastic-timeout=5"], "--elastic-timeout is for jobs that go on after a"),
        (
            ["--on-failure=continue", "--respawn-after=5"],
            "--respawn-after is for jobs that start lost ranks again",
        ),
        (
            ["--on-failure", "continue", "--min-np", "3"],
            r"--min-np must be at least 1 and at most the number of ranks (2), got 3",
        ),
        (
            ["--on-failure", "continue", "--min-np", "0"],
            r"--min-np must be at least 1 and at most the number of ranks (2), got 0",
        ),
        (["--partition", "both"], "--partition both is for jobs that go on after a"),
        (
            ["--on-failure=continue", "--partition=both"],
            "--partition both needs --respawn",
        ),
        (
            ["--on-failure=continue", "--partition=both", "--max-np=3"],
            "--partition both does not go with --max-np",
        ),
    ],
)
def test_options_for_failures_that_do_not_go_together(options, text, capfd):
    assert bfrun.cli.main([*options, "-np", "2", "true"]) == 1
    assert text in capfd.readouterr().err


LOCAL = ("-H", "localhost:4")
GOES_ON = ("--on-failure", "continue")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((*LOCAL, "--max-np", "3"), "--max-np is for jobs that go on while ranks"),
        (
            ("--host-discovery-script", "x"),
            "--host-discovery-script is for jobs that go on while ranks",
        ),
        (
            (*GOES_ON, *LOCAL, "--max-np", "1"),
            "--max-np must be at least -np (2), got 1",
        ),
        (
            (*GOES_ON, "--max-np", "3"),
            "--max-np: the number of free slots is not known",
        ),
        (
            (*GOES_ON, "--host-discovery-script", "/no/script"),
            "--host-discovery-script '/no/script' does not exist",
        ),
        (
            (*GOES_ON, *LOCAL, "--host-discovery-script", "x"),
            "names the hosts, so leave -H and --hostfile out",
        ),
        (
            (*GOES_ON, *LOCAL, "--max-np", "3", "--oversubscribe"),
            "--max-np does not go with --oversubscribe yet",
        ),
        (
            (*GOES_ON, *LOCAL, "--max-np", "3", "--timeline-filename", "t.json"),
            "--max-np does not go with --timeline-filename yet",
        ),
        (
            (*GOES_ON, *LOCAL, "--max-np", "3", "--min-np", "3"),
            "--min-np must be at least 1 and at most the number of ranks (2), got 3",
        ),
        (
            (*GOES_ON, *LOCAL, "--max-np", "3", "--job-name", "a"),
            "leave --max-np and the script out",
        ),
    ],
)
def test_options_for_growing_jobs_that_do_not_go_together(options, text, capfd):
    assert bfrun.cli.main([*options, "-np", "2", "true"]) == 1
    assert text in capfd.readouterr().err


def test_a_job_begins_with_the_hosts_that_the_script_names(tmp_path, capfd):
    script = tmp_path / "hosts.sh"
    script.write_text("#!/bin/sh\necho localhost:2; echo 127.0.0.1:2\n")
    script.chmod(0o755)
    options = [*GOES_ON, "--host-discovery-script", str(script), "--dry-run"]
    assert bfrun.cli.main([*options, "true"]) == 0
    assert "4 ranks on 2 hosts" in capfd.readouterr().out
    assert bfrun.cli.main([*options, "--max-np", "3", "true"]) == 0
    assert "3 ranks on 2 hosts" in capfd.readouterr().out
    assert bfrun.cli.main([*options, "--start-timeout", "0.1", "-np", "5", "true"]) == 1
    assert "names 4 slots, but the job needs 5" in capfd.readouterr().err


def test_min_np_may_not_exceed_the_ranks_that_the_hosts_hold(capfd):
    options = ["--on-failure", "continue", "--min-np", "3", "-H", "localhost:2"]
    assert bfrun.cli.main([*options, "true"]) == 1
    assert "at most the number of ranks (2), got 3" in capfd.readouterr().err


def test_defaults(parse):
    assert parse("-np", "4", "python", "x.py") == LaunchConfig(
        command=("python", "x.py"), world_size=4
    )


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--num-proc", "3"], {"world_size": 3}),
        (["-H", "a:1,[::1]:2"], {"hosts": (Host("a", 1), Host("::1", 2))}),
        (["--hosts", "ann@a"], {"hosts": (Host("a", user="ann"),)}),
        (["--oversubscribe"], {"oversubscribe": True}),
        (["--ranks-per-machine", "2"], {"ranks_per_machine": 2}),
        (["--launcher", "ssh"], {"launcher": "ssh"}),
        (["--gpus-per-rank", "1"], {"gpus_per_rank": 1}),
        (["--share-gpus"], {"share_gpus": True}),
        (["--bind-to", "numa"], {"bind_to": "numa"}),
        (["-x", "A=1", "--env", "B=2"], {"environment": (("A", "1"), ("B", "2"))}),
        (["--stdin"], {"stdin": True}),
        (["--python", "/opt/py"], {"python": "/opt/py"}),
        (["-p", "2222"], {"ssh_port": 2222}),
        (["-i", "key"], {"ssh_identity_file": "key"}),
        (["--ssh-config", "f"], {"ssh_config": "f"}),
        (["--network-interface", "^lo"], {"network_interface": "^lo"}),
        (["--encrypt"], {"encryption": "full"}),
        (["--encrypt=auth"], {"encryption": "auth"}),
        (["--encrypt", "--encrypt=off"], {"encryption": "off"}),
        (["--autotune"], {"autotune": True}),
        (["--autotune-file", "f.json"], {"autotune_file": "f.json"}),
        (["--autotune-plot", "p.png"], {"autotune_plot": "p.png"}),
        (["--link-timeout", "6"], {"link_timeout_s": 6.0}),
        (["--start-timeout", "9.5"], {"start_timeout_s": 9.5}),
        (["--failure-timeout", "20"], {"failure_timeout_s": 20.0}),
        (["--output-dir", "out"], {"output_dir": "out"}),
        (["--prefix-timestamp"], {"prefix_timestamp": True}),
        (["--only-rank", "0,4-6"], {"only_rank": (0, 4, 5, 6)}),
        (["-v"], {"verbose": True}),
        (["--dry-run"], {"dry_run": True}),
        (["--enable-net"], {"enable_net": True}),
        (["--check"], {"check": True}),
        (["--detached-limit", "0.0"], {"detached_limit_s": 0.0}),
    ],
)
def test_each_option(parse, arguments, expected):
    got = parse(*arguments, "cmd")
    assert got == LaunchConfig(command=("cmd",), **expected)


def test_a_wrong_mode_of_encryption_names_the_modes(capsys):
    with pytest.raises(SystemExit):
        bfrun.cli.main(["--encrypt=tls", "cmd"])
    text = "argument --encrypt: expected one of auth, full, off, got 'tls'"
    assert text in capsys.readouterr().err


def test_an_option_wins_over_its_variable(parse, monkeypatch):
    monkeypatch.setenv("BLUECOMM_START_TIMEOUT_S", "7.5")
    monkeypatch.setenv("BLUECOMM_RANKS_PER_MACHINE", "2")
    config = parse("cmd")
    assert (config.start_timeout_s, config.ranks_per_machine) == (7.5, 2)
    config = parse("--start-timeout", "9", "--ranks-per-machine", "3", "cmd")
    assert (config.start_timeout_s, config.ranks_per_machine) == (9.0, 3)


def test_a_wrong_variable_is_an_error(monkeypatch, capsys):
    monkeypatch.setenv("BLUECOMM_START_TIMEOUT_S", "soon")
    with pytest.raises(SystemExit):
        bfrun.cli.main(["cmd"])
    assert "--start-timeout: expected seconds above 0, got 'soon'" in (
        capsys.readouterr().err
    )


def test_an_empty_list_of_hosts_is_an_error(capsys):
    for option in ("-H", "--hostfile"):
        assert bfrun.cli.main([option, "", "cmd"]) != 0
    err = capsys.readouterr().err
    assert "-H '' names no host" in err
    assert "hostfile '' cannot be read" in err


def test_options_after_the_command_belong_to_the_command(parse):
    words = ("python", "x.py", "-np", "9", "--check", "-H", "a", "--", "-v")
    config = parse("-np", "2", *words)
    assert config.command == words
    assert (config.world_size, config.check, config.hosts) == (2, False, ())


def test_two_dashes_end_the_options(parse):
    assert parse("-np", "2", "--", "-odd-name", "x").command == ("-odd-name", "x")


def test_check_needs_no_command(parse):
    assert parse("--check", "-H", "a:1").command == ()


def test_hostfile(parse, tmp_path):
    path = tmp_path / "hosts"
    path.write_text("a slots=2 # one\n\nb:3\n")
    assert parse("--hostfile", str(path), "x").hosts == (Host("a", 2), Host("b", 3))


def test_assignments_override_the_env_file(parse, tmp_path, monkeypatch):
    monkeypatch.setenv("FROM_HERE", "yes")
    path = tmp_path / "env"
    path.write_text("A=file\nB=file\n")
    config = parse("-x", "A=option", "-x", "FROM_HERE", "--env-file", str(path), "x")
    assert dict(config.environment) == {"A": "option", "B": "file", "FROM_HERE": "yes"}


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "no command was given"),
        (["-np", "2"], "no command was given"),
        (["-np", "0", "x"], "at least 1, got '0'"),
        (["-np", "two", "x"], "at least 1, got 'two'"),
        (["-p", "70000", "x"], "1 to 65535, got '70000'"),
        (["--start-timeout", "0", "x"], "seconds above 0, got '0'"),
        (["--failure-timeout", "nan", "x"], "seconds above 0, got 'nan'"),
        (["--detached-limit", "-1", "x"], "expected 0 or more seconds, got '-1'"),
        (["--attach", "a", "-v", "-np", "2"], "--attach takes only options for output"),
        (["--attach", "a", "-np", "2"], "--only-rank, --verbose), not -np"),
        (["--stop", "a", "--check"], "not --check"),
        (["--only-rank", "a", "x"], "ranks such as 0 or 0,4-7, got 'a'"),
        (["--bind-to", "socket", "x"], "invalid choice: 'socket'"),
        (["-H", "a", "--hostfile", "f", "x"], "not allowed with argument"),
        (
            ["--stdin", "0", "cmd"],
            "--stdin: takes no value, got '0'; standard input always",
        ),
        (["--stdin", "all", "cmd"], "--stdin: takes no value, got 'all'"),
        (["--stdin=0", "cmd"], "--stdin: takes no value, got '0'"),
        (["--nonsense", "x"], "unrecognized arguments|no command was given"),
        (["--over", "x"], "unrecognized arguments|no command was given"),
    ],
)
def test_wrong_usage_exits_with_2(arguments, match, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        bfrun.cli.main(arguments)
    assert any(part in capsys.readouterr().err for part in match.split("|"))


@pytest.mark.parametrize(
    ("arguments", "nearest"),
    [
        (["--output-dri", "x", "-np", "2", "cmd"], "--output-dir"),
        (["-np", "2", "--outputdir=x", "cmd"], "--output-dir"),
        (["--start_timeout", "3", "cmd"], "--start-timeout"),
        (["--launcher", "slrum", "cmd"], "slurm"),
        (["-np", "2", "--zzz", "cmd"], None),
        (["--bind-to", "zzz", "cmd"], None),
    ],
)
def test_the_nearest_name_is_told(arguments, nearest, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        bfrun.cli.main(arguments)
    error = capsys.readouterr().err
    if nearest is None:
        assert "did you mean" not in error
    else:
        assert error.endswith(f"; did you mean '{nearest}'?\n")


def test_the_nearest_option_of_an_action_is_told(capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        bfrun.notebook.cli.main(["start", "-np", "2", "--lancher", "local"])
    assert "; did you mean '--launcher'?" in capsys.readouterr().err


def test_the_help_says_when_the_number_of_ranks_may_be_left_out(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        bfrun.cli.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "default with -H, --hostfile or Slurm: all slots" in text


def test_a_working_folder_that_has_been_deleted(tmp_path, monkeypatch, capsys):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert bfrun.cli.main(["-np", "1", "cmd"]) == 2
    assert "error: the working folder has been deleted" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["-H", "a:x", "cmd"], "slots must be a whole number"),
        (["--hostfile", "/no/file", "cmd"], "cannot be read"),
        (["-x", "NOT_SET_ANYWHERE", "cmd"], "write -x NOT_SET_ANYWHERE=VALUE"),
    ],
)
def test_wrong_values_exit_with_2(arguments, match, capsys):
    assert bfrun.cli.main(arguments) == 2
    error = capsys.readouterr().err
    assert error.startswith("bfrun: error: ")
    assert match in error


def test_job_that_cannot_start_exits_with_1(monkeypatch, capsys):
    def start(config: LaunchConfig) -> int:
        raise LaunchError("host 'a': on fire; put it out")

    monkeypatch.setattr(bfrun.cli, "start", start)
    assert bfrun.cli.main(["-np", "1", "x"]) == 1
    assert capsys.readouterr().err == "bfrun: error: host 'a': on fire; put it out\n"


def test_exit_code_of_the_job_is_passed_on(monkeypatch):
    monkeypatch.setattr(bfrun.cli, "start", lambda config: 137)
    assert bfrun.cli.main(["-np", "1", "x"]) == 137


def test_dry_run_prints_the_plan_and_starts_nothing(capsys):
    arguments = ["-np", "3", "-H", "a.invalid:2,b.invalid:2", "--dry-run"]
    assert bfrun.cli.main([*arguments, "python", "a b.py"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 ranks on 2 hosts, 2 machines"
    assert lines[1] == "command: python 'a b.py'"
    assert lines[2] == f"directory: {os.getcwd()}"
    assert [line.split()[:5] for line in lines[4:]] == [
        ["0", "a.invalid", "0", "of", "2"],
        ["1", "a.invalid", "1", "of", "2"],
        ["2", "b.invalid", "0", "of", "1"],
    ]


def test_dry_run_shows_threads_and_cpus(capsys, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    assert bfrun.cli.main(["-np", "1", "--bind-to", "core", "--dry-run", "x"]) == 0
    row = capsys.readouterr().out.splitlines()[-1].split()
    assert row[8] == str(cores)
    assert row[9] != "any"


def test_impossible_plan(capsys):
    assert bfrun.cli.main(["-np", "9", "-H", "a.invalid:2", "--dry-run", "x"]) == 1
    assert "2 slots (a.invalid: 2)" in capsys.readouterr().err


def test_launcher_local_refuses_other_hosts(capsys):
    arguments = ["--launcher", "local", "-H", "a.invalid:2", "--dry-run", "x"]
    assert bfrun.cli.main(arguments) == 1
    assert "host 'a.invalid' is not this machine" in capsys.readouterr().err


def test_check_of_this_machine(capsys):
    assert bfrun.cli.main(["--check", sys.executable]) == 0
    output = capsys.readouterr().out
    assert "localhost  ok" in output
    assert "1 host is ready" in output


def test_check_fails_for_a_missing_program(capsys):
    assert bfrun.cli.main(["--check", "no-such-program"]) == 1
    output = capsys.readouterr().out
    assert "FAILED" in output
    assert "host 'localhost': program 'no-such-program' is not on its PATH" in output


def test_help_states_units_and_defaults(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        bfrun.cli.main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert (
        "seconds that a rank may stay stopped before the job fails (default: 120)"
        in text
    )
    assert "(default: none)" in text


def test_version(capsys):
    with pytest.raises(SystemExit, match=r"^0$"):
        bfrun.cli.main(["--version"])
    assert capsys.readouterr().out.startswith("bfrun ")


def test_neither_torch_nor_bluecomm_nor_paramiko_is_imported():
    program = (
        "import sys, bfrun.cli; bfrun.cli.main(['-np', '1', '--dry-run', 'x']); "
        "print({'torch', 'bluecomm', 'paramiko', 'rich'} & set(sys.modules))"
    )
    output = subprocess.check_output([sys.executable, "-c", program], text=True)
    assert output.splitlines()[-1] == "set()"


def test_interrupt_before_the_start_is_no_traceback(monkeypatch, capsys):
    def start(config: LaunchConfig) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(bfrun.cli, "start", start)
    assert bfrun.cli.main(["-np", "1", "x"]) == 130
    assert capsys.readouterr().err == "bfrun: interrupted; no rank is running\n"


def test_interrupt_while_another_job_runs(monkeypatch, capsys):
    def stop(name: str, config: LaunchConfig) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(bfrun.cli, "stop", stop)
    assert bfrun.cli.main(["--stop", "x"]) == 130
    text = "bfrun: interrupted; bfrun --list names the jobs that run\n"
    assert capsys.readouterr().err == text


def test_only_rank_beyond_the_last(capsys):
    assert bfrun.cli.main(["-np", "2", "--only-rank", "1,5", "--dry-run", "x"]) == 1
    assert (
        "--only-rank 5: the job has 2 ranks, numbered from 0" in capsys.readouterr().err
    )
