"""The environment of a rank."""

from __future__ import annotations

import pytest

from bfrun.config import LaunchConfig
from bfrun.env import (
    Placement,
    forwarded_environment,
    is_foreign,
    parse_assignments,
    rank_environment,
    read_env_file,
)
from bfrun.errors import LaunchError

PLACEMENT = Placement(
    rank=5,
    world_size=8,
    local_rank=1,
    local_world_size=2,
    machine_rank=2,
    machine_world_size=4,
)


def test_sets_the_ranks_and_sizes():
    config = LaunchConfig(command=("x",), ranks_per_machine=2, start_timeout_s=600.0)
    assert rank_environment(config, PLACEMENT, {}) == {
        "BLUECOMM_RANK": "5",
        "BLUECOMM_SIZE": "8",
        "BLUECOMM_LOCAL_RANK": "1",
        "BLUECOMM_LOCAL_SIZE": "2",
        "BLUECOMM_MACHINE_RANK": "2",
        "BLUECOMM_MACHINE_SIZE": "4",
        "BLUECOMM_RANKS_PER_MACHINE": "2",
        "BLUECOMM_START_TIMEOUT_S": "600.0",
        "BLUECOMM_LINK_TIMEOUT_S": "30.0",
        "RANK": "5",
        "WORLD_SIZE": "8",
        "LOCAL_RANK": "1",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "2",
    }


def test_forwards_paths_and_library_settings_but_no_secrets():
    environ = {
        "PATH": "/bin",
        "PYTHONPATH": "/src",
        "NCCL_DEBUG": "INFO",
        "BLUECOMM_TRANSPORT": "tcp",
        "HOME": "/home/ann",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "RANK": "7",
        "BLUECOMM_RANK": "7",
        "BLUECOMM_AGENT_SOCKET": "/of/another/job",
    }
    assert forwarded_environment(environ) == {
        "PATH": "/bin",
        "PYTHONPATH": "/src",
        "NCCL_DEBUG": "INFO",
        "BLUECOMM_TRANSPORT": "tcp",
    }


def test_master_address_of_the_user_is_kept_that_of_torchrun_is_not():
    given = {"MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "2000"}
    assert forwarded_environment(given) == given
    assert forwarded_environment({**given, "TORCHELASTIC_RUN_ID": "1"}) == {}


def test_given_variables_override_forwarded_ones():
    config = LaunchConfig(command=("x",), environment=(("PATH", "/mine"),))
    assert rank_environment(config, PLACEMENT, {"PATH": "/bin"})["PATH"] == "/mine"


def test_with_verbose_ranks_say_what_they_decide_unless_told_otherwise():
    name = "BLUECOMM_LOG_LEVEL"
    config = LaunchConfig(command=("x",))
    assert name not in rank_environment(config, PLACEMENT, {})
    config = LaunchConfig(command=("x",), verbose=True)
    assert rank_environment(config, PLACEMENT, {})[name] == "info"
    assert rank_environment(config, PLACEMENT, {name: "error"})[name] == "error"


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, {}),
        ({"autotune": True}, {"": "1"}),
        ({"autotune_file": "f.json"}, {"": "1", "_FILE": "f.json"}),
        ({"autotune_plot": "p.png"}, {"": "1", "_PLOT": "p.png"}),
    ],
)
def test_options_of_autotuning_become_variables(settings, expected):
    prefix = "BLUECOMM_AUTOTUNE"
    got = rank_environment(LaunchConfig(command=("x",), **settings), PLACEMENT, {})
    found = {name: value for name, value in got.items() if name.startswith(prefix)}
    assert found == {prefix + name: value for name, value in expected.items()}
    # A file in the environment is used only by jobs that are to be tuned.
    environ = {f"{prefix}_FILE": "other"}
    got = rank_environment(LaunchConfig(command=("x",)), PLACEMENT, environ)
    assert prefix not in got


@pytest.mark.parametrize(
    "name",
    [
        "OMPI_COMM_WORLD_RANK",
        "PMI_RANK",
        "PMIX_RANK",
        "SLURM_PROCID",
        "TORCHELASTIC_RUN_ID",
    ],
)
def test_foreign_launch_variables(name):
    assert is_foreign(name)
    assert name not in forwarded_environment({name: "1"})


def test_own_variables_are_not_foreign():
    assert not is_foreign("BLUECOMM_RANK")
    assert not is_foreign("PATH")


def test_assignments():
    environ = {"A": "from here", "B": "2"}
    assert parse_assignments(["A", "B=3", "C=", "D=x=y z"], environ) == [
        ("A", "from here"),
        ("B", "3"),
        ("C", ""),
        ("D", "x=y z"),
    ]


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("MISSING", "-x MISSING: MISSING is not set here; write -x MISSING=VALUE"),
        ("1A=2", "'1A' is not the name of a variable"),
        ("=2", "'' is not the name of a variable"),
        ("RANK=3", "bfrun sets RANK for each rank"),
    ],
)
def test_says_what_is_wrong_with_an_assignment(text, match):
    with pytest.raises(LaunchError, match=match):
        parse_assignments([text], {})


def test_env_file(tmp_path):
    path = tmp_path / "env"
    path.write_text(
        "# settings\n\nA=1\nexport B = 'two words'\nC=\"x\"\nD='open\nE=a=b # kept\n"
    )
    assert read_env_file(path) == [
        ("A", "1"),
        ("B", "two words"),
        ("C", "x"),
        ("D", "'open"),
        ("E", "a=b # kept"),
    ]


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("A=1\nB\n", "line 2: expected NAME=VALUE, got 'B'"),
        ("A-B=1\n", "line 1: 'A-B' is not the name"),
        ("LOCAL_RANK=1\n", "line 1: bfrun sets LOCAL_RANK"),
    ],
)
def test_env_file_errors_name_the_line(tmp_path, content, match):
    path = tmp_path / "env"
    path.write_text(content)
    with pytest.raises(LaunchError, match=match):
        read_env_file(path)


def test_missing_env_file():
    with pytest.raises(LaunchError, match="cannot be read"):
        read_env_file("/nonexistent/env")
