"""The options of ``bfrun`` in groups, some of which ``ibfrun`` has as well."""

from __future__ import annotations

import argparse
import os
import re


def add_placement(group: argparse._ArgumentGroup) -> None:
    """Add the options for ranks, hosts and launchers."""
    group.add_argument(
        "-np",
        "--num-proc",
        dest="world_size",
        type=_positive,
        metavar="N",
        help="number of ranks (default with -H, --hostfile or Slurm: all slots of the "
        "hosts; without them, N must be given)",
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "-H",
        "--hosts",
        metavar="HOST:SLOTS,...",
        help="hosts as name, name:slots, user@name:slots or [IPv6]:slots; a host "
        "without slots takes one rank per GPU, or per core if it has no GPU "
        "(default: this machine)",
    )
    which.add_argument(
        "--hostfile",
        "-hostfile",
        metavar="F",
        help="file with one host per line, as 'name slots=4' or 'name:4'; # begins a "
        "comment",
    )
    group.add_argument(
        "--oversubscribe",
        action="store_true",
        help="allow more ranks than slots (default: that is an error)",
    )
    group.add_argument(
        "--ranks-per-machine",
        type=_positive,
        # Text, so that argparse checks it like an argument.
        default=os.environ.get("BLUECOMM_RANKS_PER_MACHINE"),
        metavar="K",
        help="split each host into simulated machines of K ranks (default: "
        "$BLUECOMM_RANKS_PER_MACHINE; if unset, each host is one machine)",
    )
    group.add_argument(
        "--launcher",
        choices=("auto", "local", "ssh", "slurm", "mpi"),
        default="auto",
        help="how to reach the hosts. local: only this machine; ssh: every host over "
        "SSH; slurm: srun, in a Slurm job; mpi: mpirun starts the ranks; auto: srun in "
        "a Slurm job unless hosts are given, otherwise directly on this machine and "
        "over SSH on others (default: %(default)s)",
    )
    group.add_argument(
        "--gpus-per-rank",
        type=_positive,
        metavar="G",
        help="GPUs that each rank sees, set by CUDA_VISIBLE_DEVICES (default: all)",
    )
    group.add_argument(
        "--share-gpus",
        action="store_true",
        help="let ranks of one host use the same GPU if it has fewer GPUs than ranks",
    )
    group.add_argument(
        "--bind-to",
        choices=("core", "numa", "none"),
        default="none",
        help="CPUs that a rank may use. core: its share of the cores; numa: one NUMA "
        "domain; none: all (default: %(default)s)",
    )


def add_environment(group: argparse._ArgumentGroup) -> None:
    """Add the options for environment variables and the interpreter."""
    group.add_argument(
        "-x",
        "--env",
        action="append",
        default=[],
        metavar="NAME[=VALUE]",
        help="set a variable, or forward its value from here; may be repeated. ps "
        "shows a VALUE to all users of this machine, so give secrets without it or in "
        "--env-file. Always forwarded: PATH, LD_LIBRARY_PATH, PYTHON*, OMP_*, NCCL_*, "
        "TORCH_*, BLUECOMM_*",
    )
    group.add_argument(
        "--env-file",
        action="append",
        default=[],
        metavar="F",
        help="file with one NAME=VALUE per line, of mode 0600 if it holds secrets; -x "
        "overrides it",
    )
    group.add_argument(
        "--python",
        metavar="PATH",
        help="interpreter that runs bfrun's agent on each host, Python 3.8 or newer "
        "(default: this interpreter's path, or python3)",
    )


def add_connections(group: argparse._ArgumentGroup) -> None:
    """Add the options for SSH, networks and start-up timeouts."""
    group.add_argument(
        "-p",
        "--ssh-port",
        type=_port,
        metavar="PORT",
        help="SSH port of every host (default: from the SSH settings, or 22)",
    )
    group.add_argument(
        "-i",
        "--ssh-identity-file",
        metavar="F",
        help="private key (default: from the SSH settings, the SSH agent, or ~/.ssh)",
    )
    group.add_argument(
        "--ssh-config",
        metavar="F",
        help="SSH settings file (default: ~/.ssh/config)",
    )
    group.add_argument(
        "--network-interface",
        metavar="WHICH",
        help="interfaces that carry data, as names, globs, ^names to exclude, or CIDR "
        "networks, separated by commas (default: any address that every other host can "
        "reach)",
    )
    group.add_argument(
        "--enable-net",
        action="store_true",
        help="let NCCL in the ranks use bluecomm's network plugin, see "
        "docs/nccl-plugin.md (default: NCCL chooses)",
    )
    group.add_argument(
        # All spellings with "=", because "--encrypt MODE" would take the command.
        "--encrypt",
        "--encrypt=full",
        dest="encryption",
        action="store_const",
        const="full",
        help="encrypt and authenticate the messages between ranks over TCP, see "
        "docs/security.md (default: $BLUECOMM_ENCRYPTION, else off)",
    )
    for mode, meaning in (
        ("auth", "only authenticate them, so that nobody can change them unnoticed"),
        ("off", "do neither"),
    ):
        group.add_argument(
            f"--encrypt={mode}",
            dest="encryption",
            action="store_const",
            const=mode,
            help=meaning,
        )
    group.add_argument(
        "--link-timeout",
        dest="link_timeout_s",
        type=_link_seconds,
        default=os.environ.get("BLUECOMM_LINK_TIMEOUT_S", "30"),
        metavar="S",
        help="seconds for which the network between hosts may carry nothing; a longer "
        "cut ends the job (default: $BLUECOMM_LINK_TIMEOUT_S, else 30)",
    )
    group.add_argument(
        "--start-timeout",
        dest="start_timeout_s",
        type=_seconds,
        default=os.environ.get("BLUECOMM_START_TIMEOUT_S", "300"),
        metavar="S",
        help="seconds within which every host must answer, and then every rank must "
        "call init (default: $BLUECOMM_START_TIMEOUT_S, else 300)",
    )
    group.add_argument(
        "--failure-timeout",
        dest="failure_timeout_s",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="seconds that a rank may stay stopped before the job fails (default: "
        "%(default)g)",
    )


def add_failures(group: argparse._ArgumentGroup) -> None:
    """Add the options for failures of ranks."""
    group.add_argument(
        "--on-failure",
        choices=("end", "continue"),
        default="end",
        help="end: the failure of a rank ends the job; continue: the other ranks train "
        "on, with algorithms that average with neighbors, see docs/survival.md "
        "(default: %(default)s)",
    )
    group.add_argument(
        "--min-np",
        type=int,
        metavar="N",
        help="with --on-failure continue: end the job when fewer ranks are left for "
        "longer than --elastic-timeout (default: 1)",
    )
    group.add_argument(
        "--elastic-timeout",
        dest="elastic_timeout_s",
        type=_seconds,
        metavar="S",
        help="with --on-failure continue: seconds for which fewer ranks than --min-np "
        "may be left (default: 600)",
    )
    group.add_argument(
        "--respawn",
        action="store_true",
        help="with --on-failure continue: start lost ranks again; they join the "
        "running job if bluecomm.elastic.run calls the training",
    )
    group.add_argument(
        "--respawn-after",
        dest="respawn_after_s",
        type=_seconds,
        metavar="S",
        help="with --respawn or --max-np: seconds from the loss of a rank to its next "
        "start; they double each time that it is lost soon after its start, up to 60 "
        "(default: 1)",
    )
    group.add_argument(
        "--partition",
        choices=("primary", "both"),
        default="primary",
        help="with --respawn: the ranks that train on while the network is cut; with "
        "'both', those of all sides, which join each other again when the network has "
        "healed, see docs/survival.md (default: %(default)s, the side that has more "
        "than half of the ranks)",
    )


def add_growth(group: argparse._ArgumentGroup) -> None:
    """Add the options for jobs whose number of ranks changes."""
    group.add_argument(
        "--max-np",
        type=int,
        metavar="N",
        help="with --on-failure continue: add ranks to the running job while the hosts "
        "have free slots, up to N ranks, and start lost ranks again; they join as with "
        "--respawn, see docs/survival.md (default with --host-discovery-script: all "
        "slots)",
    )
    group.add_argument(
        "--host-discovery-script",
        metavar="F",
        help="with --on-failure continue: program that prints the hosts which the job "
        "may use now, one 'name:slots' on each line. It runs every few seconds; new "
        "slots get ranks, also on hosts that are new to the job, and the ranks of "
        "slots that it no longer prints leave (default: the hosts of -H or --hostfile)",
    )


def add_detaching(group: argparse._ArgumentGroup) -> None:
    """Add the options for jobs that go on without bfrun."""
    group.add_argument(
        "--detached-limit",
        dest="detached_limit_s",
        type=_limit_seconds,
        metavar="S",
        help="with --on-failure continue: seconds for which the ranks go on after "
        "SIGHUP or the death of bfrun, until another one attaches; 0: they end with "
        "bfrun (default: 600; 0 for jobs that cannot detach, and over SSH without "
        "--job-name, see docs/survival.md)",
    )
    group.add_argument(
        "--job-name",
        metavar="JOB",
        help="name for --attach and --stop, of letters, digits and underscores "
        "(default: a random one)",
    )
    which = group.add_mutually_exclusive_group()
    which.add_argument(
        "--attach",
        metavar="JOB",
        help="take over a job whose bfrun has ended: show its output, and exit as the "
        "first bfrun would have",
    )
    which.add_argument(
        "--list",
        action="store_true",
        help="list the jobs of this user on this host that can detach",
    )
    which.add_argument("--stop", metavar="JOB", help="end a job, detached or not")


def add_mpi(group: argparse._ArgumentGroup) -> None:
    """Add the options for MPI."""
    group.add_argument(
        "--use-infiniband",
        action="store_true",
        help="carry data over InfiniBand, through UCX (default: the MPI chooses)",
    )
    group.add_argument(
        "--extra-mpi-flags",
        default="",
        metavar="FLAGS",
        help="more options for mpirun, as one argument: --extra-mpi-flags='--mca a 1'",
    )
    group.add_argument(
        "--prefix",
        metavar="DIR",
        help="folder of the MPI, which has bin/mpirun (default: the first mpirun on "
        "PATH, or the one next to this interpreter)",
    )


def add_autotune(group: argparse._ArgumentGroup) -> None:
    """Add the options for autotuning."""
    group.add_argument(
        "--autotune",
        action="store_true",
        help="let optimizers of bluecomm try other sizes of messages while they train, "
        "and keep the fastest, see docs/autotune.md (default: $BLUECOMM_AUTOTUNE, else "
        "off)",
    )
    group.add_argument(
        "--autotune-file",
        metavar="F",
        help="keep the result in F, on the host of rank 0, and use it again; implies "
        "--autotune",
    )
    group.add_argument(
        "--autotune-plot",
        metavar="F",
        help="draw the trials into the picture F, on the host of rank 0; implies "
        "--autotune",
    )


def add_output(group: argparse._ArgumentGroup) -> None:
    """Add the options for standard input, output, logs and timelines."""
    group.add_argument(
        "--stdin",
        action="store_true",
        help="pass standard input to rank 0 (default: ranks have no input)",
    )
    group.add_argument(
        "--output-dir",
        metavar="DIR",
        help="also write the output of each rank and stream to a file in a new folder "
        "of this run below DIR; the link DIR/latest points to the newest",
    )
    group.add_argument(
        "--timeline-filename",
        metavar="F",
        help="write one timeline of all ranks to F, as JSON for ui.perfetto.dev and "
        "chrome://tracing",
    )
    group.add_argument(
        "--prefix-timestamp",
        action="store_true",
        help="put the time before the rank in each line (default: only the rank)",
    )
    group.add_argument(
        "--only-rank",
        type=_ranks,
        default=(),
        metavar="R,...",
        help="show only the output of these ranks, such as 0 or 0,4-7 (default: all)",
    )
    group.add_argument(
        "-v",
        "--verbose",
        action="store_true",
        help="print the plan, addresses, agents, and connections between ranks",
    )


def add_modes(group: argparse._ArgumentGroup) -> None:
    """Add the options that start no rank."""
    group.add_argument(
        "--dry-run", action="store_true", help="print the plan and start nothing"
    )
    group.add_argument(
        "--check",
        action="store_true",
        help="check that all hosts can be reached and fit together (versions, "
        "addresses, cores), and start nothing",
    )


def _positive(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) < 1:
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at least 1, got '{text}'"
        )
    return int(text)


def _port(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 65536:
        raise argparse.ArgumentTypeError(f"expected a port, 1 to 65535, got '{text}'")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"expected seconds above 0, got '{text}'")
    return value


def _limit_seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        raise argparse.ArgumentTypeError(f"expected 0 or more seconds, got '{text}'")
    return value


def _link_seconds(text: str) -> float:
    value = _seconds(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected at least 1 second, got '{text}'")
    return value


def _ranks(text: str) -> tuple[int, ...]:
    ranks: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", part.strip())
        if not found:
            raise argparse.ArgumentTypeError(
                f"expected ranks such as 0 or 0,4-7, got '{text}'"
            )
        first = int(found[1])
        ranks.update(range(first, int(found[2] or first) + 1))
    return tuple(sorted(ranks))
