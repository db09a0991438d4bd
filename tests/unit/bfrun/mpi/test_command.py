"""The mpirun command of a job, for each implementation."""

import sys
from dataclasses import replace

import pytest

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.mpi import command as command_module
from bfrun.mpi.command import make_command, rails_of_all_hosts
from bfrun.mpi.implementation import (
    MpiImplementation,
    find_implementation,
    parse_version,
)
from bfrun.mpi.job import run_mpi
from bfrun.mpi.plan import plan_mpi
from tests.support.stand_in import replace_in

OPEN_MPI_4 = MpiImplementation("/a/mpirun", "openmpi", (4, 1, 4))
OPEN_MPI_5 = MpiImplementation("/a/mpirun", "openmpi", (5, 0, 11))
MPICH = MpiImplementation("/a/mpirun", "mpich", (5, 0, 2))
HOSTS = [(Host("a", 2), 2), (Host("b", 1), 1)]
CONFIG = LaunchConfig(("prog",), hosts=(Host("a", 2), Host("b", 1)), launcher="mpi")


def command(mpi, placed=HOSTS, takes_turns=False, variables=None, **settings):
    made = make_command(
        replace(CONFIG, **settings),
        placed,
        mpi,
        variables or {},
        ["prog"],
        takes_turns=takes_turns,
    )
    return " ".join(made.argv)


@pytest.fixture(autouse=True)
def not_root(monkeypatch):
    replace_in(monkeypatch, command_module, "os", geteuid=lambda: 1000)


def test_hosts_and_slots():
    expected = "/a/mpirun -np 3 --host a:2,b:1 --bind-to none --map-by slot prog"
    assert command(OPEN_MPI_4) == command(OPEN_MPI_5) == expected
    assert command(MPICH) == "/a/mpirun -np 3 -hosts a:2,b:1 -bind-to none prog"


@pytest.mark.parametrize(
    ("pattern", "value"),
    [
        (None, None),
        ("eth0, eth1", "=eth0,eth1"),
        ("^docker0", "^=docker0"),
        ("eth0,10.0.0.0/8", None),
        ("10.0.0.1", None),
    ],
)
def test_the_rails_of_nccl_are_the_named_interfaces(pattern, value):
    config = replace(CONFIG, enable_net=True, network_interface=pattern)
    expected = {} if value is None else {"NCCL_SOCKET_IFNAME": value}
    assert rails_of_all_hosts(config) == expected
    assert rails_of_all_hosts(replace(config, enable_net=False)) == {}


def test_this_machine_takes_any_number():
    assert "--oversubscribe" in command(OPEN_MPI_4, [], hosts=(), world_size=9)
    said = command(OPEN_MPI_5, [], hosts=(), world_size=9)
    assert "-np 9" in said
    assert "--host" not in said
    assert "--map-by slot:OVERSUBSCRIBE" in said


@pytest.mark.parametrize(
    ("mpi", "settings", "expected"),
    [
        (OPEN_MPI_4, {"oversubscribe": True}, "--map-by slot --oversubscribe"),
        (OPEN_MPI_5, {"oversubscribe": True}, "--map-by slot:OVERSUBSCRIBE"),
        (OPEN_MPI_4, {"takes_turns": True}, "--mca mpi_yield_when_idle 1"),
        (OPEN_MPI_5, {"takes_turns": True}, "--mca mpi_yield_when_idle 1"),
        (OPEN_MPI_5, {"bind_to": "core"}, "--bind-to core"),
        (MPICH, {"bind_to": "numa"}, "-bind-to numa"),
        (
            OPEN_MPI_4,
            {"network_interface": "eth0,10.0.0.0/8"},
            "--mca btl_tcp_if_include eth0,10.0.0.0/8 "
            "--mca oob_tcp_if_include eth0,10.0.0.0/8",
        ),
        (
            OPEN_MPI_5,
            {"network_interface": "^docker0"},
            "--mca btl_tcp_if_exclude docker0 --prtemca prte_if_exclude docker0",
        ),
        (MPICH, {"network_interface": "eth0"}, "-iface eth0"),
        (OPEN_MPI_4, {"use_infiniband": True}, "--mca pml ucx"),
        (MPICH, {"use_infiniband": True}, "-genv MPIR_CVAR_CH4_NETMOD ucx"),
        (OPEN_MPI_4, {"ssh_port": 22022}, "--mca plm_rsh_args -p 22022"),
        (OPEN_MPI_5, {"ssh_port": 22022}, "--prtemca plm_ssh_args -p 22022"),
        (OPEN_MPI_4, {"extra_mpi_flags": "--mca x 'a b'"}, "--mca x a b prog"),
        (OPEN_MPI_4, {"variables": {"B": "2", "A": "1"}}, "-x A -x B prog"),
        (MPICH, {"variables": {"B": "2", "A": "1"}}, "-genvlist A,B prog"),
    ],
)
def test_each_setting_has_the_words_of_each_implementation(mpi, settings, expected):
    assert expected in command(mpi, **settings)


def test_ssh_settings_reach_hydra_by_its_variable():
    config = replace(CONFIG, ssh_port=22022)
    made = make_command(config, HOSTS, MPICH, {}, ["prog"], takes_turns=False)
    assert made.settings == {"HYDRA_LAUNCHER_EXTRA_ARGS": "-p 22022"}


def test_hydras_proxies_are_told_where_to_call():
    for mpi, expected in ((MPICH, "-localhost 10.0.0.9"), (OPEN_MPI_5, "--host")):
        made = make_command(
            CONFIG,
            HOSTS,
            mpi,
            {},
            ["prog"],
            takes_turns=False,
            own_address="10.0.0.9",
        )
        assert expected in " ".join(made.argv)
        assert ("10.0.0.9" in made.argv) == (mpi is MPICH)


def test_root_is_allowed_for_open_mpi(monkeypatch):
    replace_in(monkeypatch, command_module, "os", geteuid=lambda: 0)
    assert "--allow-run-as-root" in command(OPEN_MPI_5)
    assert "--allow-run-as-root" not in command(MPICH)


@pytest.mark.parametrize(
    ("mpi", "settings", "match"),
    [
        (OPEN_MPI_4, {"network_interface": "eth*"}, r"without \* and \?"),
        (OPEN_MPI_4, {"network_interface": "eth0,^eth1"}, "not both"),
        (MPICH, {"network_interface": "^eth0"}, "MPICH takes the name of only one"),
        (MPICH, {"extra_mpi_flags": "'"}, "--extra-mpi-flags .*No closing"),
    ],
)
def test_what_an_implementation_cannot_do_is_refused(mpi, settings, match):
    with pytest.raises(LaunchError, match=match):
        command(mpi, **settings)


def test_login_names_are_refused():
    with pytest.raises(LaunchError, match="mpirun takes no login names"):
        command(OPEN_MPI_4, [(Host("a", 1, "me"), 1)])


@pytest.mark.parametrize("mpi", [OPEN_MPI_5, MPICH])
def test_addresses_with_colons_are_refused(mpi):
    with pytest.raises(LaunchError, match=r"host '\[fe80::1\]:2': .* a name in /etc"):
        command(mpi, [(Host("fe80::1", 2), 2)])


@pytest.mark.parametrize(
    ("said", "kind", "version"),
    [
        ("mpirun (Open MPI) 4.1.4\n\nReport bugs", "openmpi", (4, 1, 4)),
        ("mpirun (Open MPI) 5.0.11", "openmpi", (5, 0, 11)),
        ("HYDRA build details:\n    Version:         5.0.2\n", "mpich", (5, 0, 2)),
        ("HYDRA build details:\n    Version:         4.3\n", "mpich", (4, 3)),
    ],
)
def test_versions(said, kind, version):
    assert parse_version("m", said) == MpiImplementation("m", kind, version)


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("mpirun (Open MPI) 3.1.6", "is Open MPI 3.1.6, but bfrun needs 4 or newer"),
        ("Intel(R) MPI Library 2021", "neither Open MPI nor MPICH"),
        ("", "neither Open MPI nor MPICH"),
    ],
)
def test_unknown_versions(said, match):
    with pytest.raises(LaunchError, match=match):
        parse_version("m", said)


def fake_mpirun(folder, version):
    (folder / "bin").mkdir(parents=True)
    path = folder / "bin" / "mpirun"
    path.write_text(f"#!/bin/sh\necho 'mpirun (Open MPI) {version}'\n")
    path.chmod(0o755)
    return path


def test_the_sites_mpi_is_preferred_to_the_interpreters(tmp_path, monkeypatch):
    site, own = tmp_path / "site", tmp_path / "own"
    monkeypatch.setattr(sys, "prefix", str(own))
    with pytest.raises(LaunchError, match=r"no mpirun .*bluecomm\[mpi\]"):
        find_implementation(None, {"PATH": str(site / "bin")})
    mine = fake_mpirun(own, "5.0.11")
    path = {"PATH": f"{own}/bin:{site}/bin:/bin"}
    assert find_implementation(None, {"PATH": f"{own}/bin"}).mpirun == str(mine)
    theirs = fake_mpirun(site, "4.1.4")
    assert find_implementation(None, path).mpirun == str(theirs)
    assert find_implementation(str(own), path).mpirun == str(mine)


def plan(tmp_path, environ=None, **settings):
    if not (tmp_path / "mpi").exists():
        fake_mpirun(tmp_path / "mpi", "5.0.11")
    config = replace(CONFIG, prefix=str(tmp_path / "mpi"), **settings)
    return plan_mpi(config, environ or {}, "MARK", "CODE")


def test_a_dry_run_prints_the_command(tmp_path, capsys):
    fake_mpirun(tmp_path / "mpi", "5.0.11")
    config = replace(CONFIG, prefix=str(tmp_path / "mpi"), dry_run=True)
    assert run_mpi(config, {"PATH": "/bin"}) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"{tmp_path}/mpi/bin/mpirun -np 3 --host a:2,b:1 ")
    assert said.endswith(" ARCHIVE 0 prog\n")


def test_gpus_per_rank_are_told_to_what_starts_a_rank(tmp_path):
    assert plan(tmp_path, gpus_per_rank=2).argv[-2:] == ("2", "prog")


def test_the_variables_of_the_ranks(tmp_path):
    made = plan(
        tmp_path,
        {"PATH": "/bin", "SECRET": "x", "BLUECOMM_TRANSPORT": "tcp"},
        environment=(("MINE", "1"),),
        ranks_per_machine=2,
    )
    assert "SECRET" not in made.variables
    assert made.variables["BLUECOMM_TRANSPORT"] == "tcp"
    assert made.variables["MINE"] == "1"
    assert made.variables["BLUECOMM_RANKS_PER_MACHINE"] == "2"
    assert made.variables["MASTER_ADDR"] == "a"
    assert 1024 < int(made.variables["MASTER_PORT"]) < 65536


def test_hosts_of_a_slurm_job(tmp_path):
    job = {
        "SLURM_JOB_ID": "7",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_CPUS_PER_NODE": "8,4",
    }
    assert "--host n1:8,n2:4" in " ".join(plan(tmp_path, job, hosts=()).argv)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"hosts": ()}, "number of ranks is not known"),
        ({"hosts": (Host("a"),)}, "without slots.*write a:SLOTS"),
        ({"world_size": 4}, "-np 4: the hosts have 3 slots"),
        ({"output_dir": "d"}, r"--output-dir needs bfrun's agents.*>DIR/\$RANK.out"),
        ({"check": True}, "--check needs .* leave --launcher out"),
        ({"timeline_filename": "t"}, "--timeline-filename .*BLUECOMM_TIMELINE=PREFIX"),
        ({"only_rank": (0,)}, "--only-rank needs .* --extra-mpi-flags"),
        ({"prefix_timestamp": True}, "--prefix-timestamp needs"),
        ({"stdin": True}, "--stdin needs"),
    ],
)
def test_settings_that_do_not_go_together(tmp_path, settings, match):
    with pytest.raises(LaunchError, match=match):
        plan(tmp_path, **settings)
