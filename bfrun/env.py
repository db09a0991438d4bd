"""The environment of a rank: variables that are set, forwarded or removed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from bfrun.config import LaunchConfig
from bfrun.errors import LaunchError

# Removed, because with these variables a rank would join the other launcher's job.
FOREIGN_PREFIXES = ("OMPI_", "PMI", "SLURM_", "TORCHELASTIC_")

# Forwarded to every host without -x: paths of programs and libraries, language, and
# settings of the libraries that training scripts use.
FORWARDED_NAMES = frozenset(
    (
        "PATH",
        "LD_LIBRARY_PATH",
        "LIBRARY_PATH",
        "VIRTUAL_ENV",
        "CONDA_PREFIX",
        "CONDA_DEFAULT_ENV",
        "LANG",
        "LANGUAGE",
        "TZ",
        "MASTER_ADDR",
        "MASTER_PORT",
    )
)
FORWARDED_PREFIXES = (
    "BLUECOMM_",
    "LC_",
    "MKL_",
    "NCCL_",
    "OMP_",
    "PYTHON",
    "PYTORCH_",
    "TORCH_",
)

# Set by bfrun for each rank, so neither forwarded nor taken from the user.
LAUNCH_NAMES = frozenset(
    (
        "BLUECOMM_RANK",
        "BLUECOMM_SIZE",
        "BLUECOMM_LOCAL_RANK",
        "BLUECOMM_LOCAL_SIZE",
        "BLUECOMM_MACHINE_RANK",
        "BLUECOMM_MACHINE_SIZE",
        "BLUECOMM_RANKS_PER_MACHINE",
        "BLUECOMM_AGENT_SOCKET",
        "BLUECOMM_JOB",
        "RANK",
        "WORLD_SIZE",
        "LOCAL_RANK",
        "LOCAL_WORLD_SIZE",
        "GROUP_RANK",
    )
)

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


@dataclass(frozen=True)
class Placement:
    """A rank's number in the world and on its machine, and its machine's number."""

    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    machine_rank: int
    machine_world_size: int


def is_foreign(name: str) -> bool:
    """Return whether ``name`` belongs to another launcher, so no rank may see it."""
    return name.startswith(FOREIGN_PREFIXES)


def forwarded_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of ``environ`` that every host gets without ``-x``."""
    # The user did not choose torchrun's own rendezvous address.
    skipped = set(LAUNCH_NAMES)
    if "TORCHELASTIC_RUN_ID" in environ:
        skipped |= {"MASTER_ADDR", "MASTER_PORT"}
    return {
        name: value
        for name, value in environ.items()
        if (name in FORWARDED_NAMES or name.startswith(FORWARDED_PREFIXES))
        and name not in skipped
    }


def chosen_environment(
    config: LaunchConfig, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the user's variables for the ranks: those forwarded, then ``-x``.

    ``--encrypt`` and the options of GPUs and of autotuning override them. With
    ``--verbose``, the ranks log their launcher and their connections, too.
    """
    result = {**forwarded_environment(environ), **dict(config.environment)}
    if config.encryption is not None:
        result["BLUECOMM_ENCRYPTION"] = config.encryption
    files = {"FILE": config.autotune_file, "PLOT": config.autotune_plot}
    for word, path in files.items():
        if path is not None:
            result[f"BLUECOMM_AUTOTUNE_{word}"] = path
    if config.autotune or any(path is not None for path in files.values()):
        result["BLUECOMM_AUTOTUNE"] = "1"
    if config.gpus_per_rank is not None:
        result["BLUECOMM_GPUS_PER_RANK"] = str(config.gpus_per_rank)
    if config.share_gpus:
        result["BLUECOMM_SHARE_GPUS"] = "1"
    if config.verbose:
        result.setdefault("BLUECOMM_LOG_LEVEL", "info")
    return result


def rank_environment(
    config: LaunchConfig, placement: Placement, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of one rank: forwarded, then ``-x``, then bfrun's own.

    Args:
        config: The settings; ``environment`` has those of ``-x`` and ``--env-file``.
        placement: The rank's numbers and the sizes.
        environ: The environment to forward from.
    """
    result = chosen_environment(config, environ)
    result.update(
        BLUECOMM_RANK=str(placement.rank),
        BLUECOMM_SIZE=str(placement.world_size),
        BLUECOMM_LOCAL_RANK=str(placement.local_rank),
        BLUECOMM_LOCAL_SIZE=str(placement.local_world_size),
        BLUECOMM_MACHINE_RANK=str(placement.machine_rank),
        BLUECOMM_MACHINE_SIZE=str(placement.machine_world_size),
        BLUECOMM_START_TIMEOUT_S=str(config.start_timeout_s),
        BLUECOMM_LINK_TIMEOUT_S=str(config.link_timeout_s),
        RANK=str(placement.rank),
        WORLD_SIZE=str(placement.world_size),
        LOCAL_RANK=str(placement.local_rank),
        LOCAL_WORLD_SIZE=str(placement.local_world_size),
        # The number of the machine, by torchrun's name, for Lightning.
        GROUP_RANK=str(placement.machine_rank),
    )
    if config.ranks_per_machine is not None:
        result["BLUECOMM_RANKS_PER_MACHINE"] = str(config.ranks_per_machine)
    return result


def parse_assignments(
    texts: Iterable[str], environ: Mapping[str, str]
) -> list[tuple[str, str]]:
    """Return the variables that ``-x NAME`` or ``-x NAME=VALUE`` options set.

    Raises:
        LaunchError: A name is not a variable name, belongs to bfrun, or has no value
            here or in the option.
    """
    pairs = []
    for text in texts:
        name, given, value = text.partition("=")
        _check_name(name, f"-x {name}")  # the value may be a secret
        if not given:
            if name not in environ:
                raise LaunchError(
                    f"-x {name}: {name} is not set here; write -x {name}=VALUE"
                )
            value = environ[name]
        pairs.append((name, value))
    return pairs


def read_env_file(path: str | Path) -> list[tuple[str, str]]:
    """Return the variables of a file with one ``NAME=VALUE`` per line.

    Skips empty lines and lines that begin with ``#``. A line may have ``export`` before
    the name and one pair of quotes around the value.

    Raises:
        LaunchError: The file cannot be read, or a line is not ``NAME=VALUE``.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LaunchError(f"--env-file '{path}' cannot be read: {error}") from error
    pairs = []
    for number, line in enumerate(lines, start=1):
        text = line.strip()
        if not text or text.startswith("#"):
            continue
        where = f"--env-file '{path}', line {number}"
        name, given, value = text.partition("=")
        name = name.removeprefix("export ").strip()
        if not given:
            raise LaunchError(f"{where}: expected NAME=VALUE, got '{text}'")
        _check_name(name, where)
        pairs.append((name, _unquote(value.strip())))
    return pairs


def _check_name(name: str, where: str) -> None:
    if not _NAME.match(name):
        raise LaunchError(f"{where}: '{name}' is not the name of a variable")
    if name in LAUNCH_NAMES:
        raise LaunchError(f"{where}: bfrun sets {name} for each rank; leave it out")


def _unquote(value: str) -> str:
    if len(value) >= 2 and value[0] == value[-1] and value[0] in "'\"":
        return value[1:-1]
    return value
