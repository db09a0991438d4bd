"""All settings of bluecomm, in one frozen value that ``init`` makes.

An argument takes precedence over a variable, and a variable over the default. No other
code reads ``BLUECOMM_*`` variables; the native engine receives the values and never
reads the environment.

``python -m bluecomm.config`` prints docs/configuration.md, which is generated from this
file.
"""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from bfrun.wording import did_you_mean

PREFIX = "BLUECOMM_"
# Prefix of the settings of the network plugin for NCCL, which reads them itself.
PLUGIN_PREFIX = "BLUECOMM_NET_"

_MIB = 1 << 20
_STREAM_COUNTS = {"auto", *map(str, range(1, 17))}
_BOOLEANS = {"0": False, "1": True, "false": False, "true": True}


def _setting(default: object, meaning: str, *, minimum: float | None = None) -> Any:
    """Return a dataclass field with its description and its lower limit."""
    metadata = {"meaning": meaning, "minimum": minimum}
    return dataclasses.field(default=default, metadata=metadata)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Config:
    """Settings of one process; field ``x_y`` is the variable ``BLUECOMM_X_Y``.

    Raises:
        TypeError: A value has the wrong type.
        ValueError: A value is out of its range, or the ranks and sizes contradict
            each other.
    """

    rank: int | None = _setting(
        None, "Rank of this process. Set by bfrun, with the five below.", minimum=0
    )
    size: int | None = _setting(None, "Number of ranks.", minimum=1)
    local_rank: int | None = _setting(
        None, "Rank of this process on its machine.", minimum=0
    )
    local_size: int | None = _setting(
        None, "Number of ranks on this machine.", minimum=1
    )
    machine_rank: int | None = _setting(
        None, "Rank of this machine among the machines.", minimum=0
    )
    machine_size: int | None = _setting(None, "Number of machines.", minimum=1)
    agent_socket: str | None = _setting(
        None, "Path of the Unix socket of this machine's agent. Set by bfrun."
    )
    job: str | None = _setting(None, "Identifier of the job. Set by bfrun.")
    ranks_per_machine: int | None = _setting(
        None,
        "Cut every host into simulated machines of this many ranks. "
        "Flag: --ranks-per-machine. Default: a machine is a host.",
        minimum=1,
    )
    gpus_per_rank: int | None = _setting(
        None,
        "Number of GPUs that this rank sees, if other ranks do not see them. "
        "Flag: --gpus-per-rank.",
        minimum=1,
    )
    share_gpus: bool = _setting(
        False,
        "Let ranks of one machine use the same GPU; rank n there has GPU n modulo the "
        "number of GPUs. Flag: --share-gpus.",
    )
    transport: Literal["auto", "shm", "tcp", "mpi"] = _setting(
        "auto",
        "Transport between ranks: shared memory (shm), TCP (tcp) or messages of MPI "
        "(mpi). auto uses shared memory within a machine; between machines it uses MPI "
        "in a job that MPI's launcher started, and TCP in other jobs.",
    )
    device_transport: Literal["auto", "staged", "nccl"] = _setting(
        "auto",
        "Path of tensors on CUDA devices: through memory of the host (staged), or, for "
        "the operations that gpu.md lists, through NCCL (nccl). auto uses NCCL if each "
        "rank has NCCL 2.14 or newer, of the same version, and a GPU of its own. It "
        "must be the same on all ranks.",
    )
    windows: Literal["auto", "nccl"] = _setting(
        "auto",
        "Where windows of tensors on CUDA devices lie: where bluecomm chooses (auto), "
        "or in memory of the devices, into which neighbors put through NCCL 2.29.2 or "
        "newer (nccl; experimental, not run on a GPU yet; see windows.md). It must be "
        "the same on all ranks.",
    )
    device_codes: Literal["auto", "host"] = _setting(
        "auto",
        "Where algorithms make and decode the codes of tensors on CUDA devices: on the "
        "device if numba.cuda can compile its kernels (auto), or on the host. The "
        "bytes are the same, so ranks may differ.",
    )
    mpi_lib: str | None = _setting(
        None,
        "Path or name of the libmpi to use under mpirun or with init(comm=). Default: "
        "the libmpi of the process, the launcher, Python's environment or the system.",
    )
    network_interface: str | None = _setting(
        None,
        "Interfaces that carry data if a launcher other than bfrun started the ranks: "
        "names, globs, ^exclusions or CIDRs, separated by commas. Default: all.",
    )
    secret_file: str | None = _setting(
        None,
        "File with 16 or more random bytes, the same on each machine. The keys of "
        "connections are derived from it if the launcher cannot transmit them "
        "privately (torchrun on several machines). Only its owner may read it.",
    )
    operation_timeout_s: float = _setting(
        600.0,
        "Seconds that an operation waits for live ranks that do not take part.",
        minimum=0.001,
    )
    start_timeout_s: float = _setting(
        300.0,
        "Seconds that init waits for all ranks to start. Flag: --start-timeout.",
        minimum=0.001,
    )
    bucket_bytes: int | None = _setting(
        None,
        "Bytes of parameters that are sent together. Default: 4 MiB for gradients, "
        "which are sent while others are computed, and 25 MiB for parameters.",
        minimum=1,
    )
    share_ddp_buckets: bool = _setting(
        True,
        "Move the buckets of DistributedDataParallel into shared memory if its process "
        "group is one of bluecomm.",
    )
    tcp_streams: str = _setting(
        "auto",
        "TCP connections to each peer: a number from 1 to 16, or auto, which opens 8 "
        "when the first one is full, and then uses the fewest that carry as much.",
    )
    encryption: Literal["off", "auth", "full"] = _setting(
        "off",
        "Protection of messages over TCP: off; auth, against changes; or full, against "
        "changes and readers. It must be the same on all ranks; see security.md. Flag: "
        "--encrypt.",
    )
    link_timeout_s: float = _setting(
        30.0,
        "Seconds that a TCP link may carry nothing before it is lost. A link that "
        "heals earlier goes on. Flag: --link-timeout.",
        minimum=1.0,
    )
    hold_timeout_s: float = _setting(
        600.0,
        "In a job that survives losses: seconds that a rank that reaches too few other "
        "ranks to go on waits for them, before its operations fail.",
        minimum=0.001,
    )
    eager_bytes: int = _setting(
        4096,
        "Largest message in bytes that is sent before its receiver asks for it.",
        minimum=0,
    )
    shm_staging_bytes: int = _setting(
        8 * _MIB,
        "Bytes of shared memory per rank through which tensors that are not in shared "
        "memory are copied.",
        minimum=4096,
    )
    autotune: bool = _setting(
        False,
        "Tune optimizers that can be tuned while they train; see autotune.md. Flag: "
        "--autotune.",
    )
    autotune_file: str | None = _setting(
        None,
        "File that keeps the results of autotuning, on the host of rank 0. Results for "
        "the same job are used without another search. Flag: --autotune-file.",
    )
    autotune_plot: str | None = _setting(
        None,
        "Picture of the trials of autotuning, on the host of rank 0. Flag: "
        "--autotune-plot.",
    )
    autotune_trials: int = _setting(
        16,
        "Number of settings that autotuning measures besides the default.",
        minimum=1,
    )
    autotune_warmup_s: float = _setting(
        1.0, "Seconds of training before each measurement of autotuning.", minimum=0.0
    )
    autotune_sample_s: float = _setting(
        4.0, "Seconds of each measurement of autotuning.", minimum=0.001
    )
    autotune_compression: bool = _setting(
        False,
        "Whether autotuning may send gradients as 16-bit numbers, which changes the "
        "results of training.",
    )
    timeline: str | None = _setting(
        None,
        "Prefix of the timelines: each rank writes its own to PREFIX<rank>.json. bfrun "
        "--timeline-filename makes one file for all ranks. With DYNAMIC, "
        "start_timeline and stop_timeline make files.",
    )
    timeline_bytes: int = _setting(
        8 * _MIB,
        "Bytes per rank for the events of a timeline. Old events are overwritten.",
        minimum=64,
    )
    log_level: Literal["trace", "debug", "info", "warning", "error", "fatal"] = (
        _setting("warning", "Least severe messages to write to standard error.")
    )

    @property
    def tcp_stream_count(self) -> int:
        """``tcp_streams`` as a number, where 0 stands for ``auto``."""
        return 0 if self.tcp_streams == "auto" else int(self.tcp_streams)

    def __post_init__(self) -> None:
        for setting in dataclasses.fields(self):
            _check(setting, getattr(self, setting.name))
        if self.tcp_streams not in _STREAM_COUNTS:
            raise ValueError(
                "tcp_streams (BLUECOMM_TCP_STREAMS): expected auto or a number from 1 "
                f"to 16, got {self.tcp_streams!r}"
            )
        _check_rank("rank", self.rank, "size", self.size)
        _check_rank("local_rank", self.local_rank, "local_size", self.local_size)
        _check_rank(
            "machine_rank", self.machine_rank, "machine_size", self.machine_size
        )

    @classmethod
    def from_environment(
        cls, environ: Mapping[str, str], **overrides: object
    ) -> Config:
        """Return the settings of this process.

        Args:
            environ: Variables, such as ``os.environ``. Only variables that start with
                ``BLUECOMM_`` and not with ``BLUECOMM_NET_`` are read.
            **overrides: Values by field name, which take precedence over the variables.
                ``None`` means that no value is given.

        Returns:
            New settings.

        Raises:
            TypeError: An override has the wrong type, or is not the name of a field.
            ValueError: A variable is unknown or cannot be parsed, or a value is out
                of its range.
        """
        settings = {variable_name(field): field for field in dataclasses.fields(cls)}
        values: dict[str, object] = {}
        for variable, text in environ.items():
            if variable.startswith(PREFIX) and not variable.startswith(PLUGIN_PREFIX):
                if variable not in settings:
                    raise ValueError(_unknown(variable, settings))
                setting = settings[variable]
                values[setting.name] = _parse(variable, text, _kinds()[setting.name])
        values.update(
            {name: value for name, value in overrides.items() if value is not None}
        )
        return cls(**typing.cast(Any, values))


def variable_name(setting: dataclasses.Field[Any]) -> str:
    """Return the environment variable of a field of ``Config``."""
    return PREFIX + setting.name.upper()


def render_documentation() -> str:
    """Return the text of docs/configuration.md."""
    lines = [
        "# Configuration",
        "",
        "All settings of bluecomm. A flag of `bfrun` takes precedence over a variable,"
        " and a variable over the default. An unknown `BLUECOMM_*` variable is an"
        " error.",
        "[nccl-plugin.md](nccl-plugin.md) lists the settings of the network plugin for"
        " NCCL, `BLUECOMM_NET_*`.",
        "",
        "<!-- Made by `python -m bluecomm.config` from bluecomm/config.py. -->",
        "",
        "| variable | type | default | meaning |",
        "|---|---|---|---|",
    ]
    for setting in dataclasses.fields(Config):
        default = "none" if setting.default is None else f"`{setting.default}`"
        kind = _describe(_kinds()[setting.name])
        meaning = setting.metadata["meaning"]
        lines.append(f"| `{variable_name(setting)}` | {kind} | {default} | {meaning} |")
    return "\n".join(lines) + "\n"


def _kinds() -> dict[str, tuple[Any, ...]]:
    """Return the alternatives of each field's type, by field name."""
    kinds = {}
    for name, hint in typing.get_type_hints(Config).items():
        is_union = typing.get_origin(hint) in (typing.Union, types.UnionType)
        kinds[name] = typing.get_args(hint) if is_union else (hint,)
    return kinds


def _choices(kinds: tuple[Any, ...]) -> tuple[str, ...]:
    """Return the allowed words of a ``Literal`` type, or nothing."""
    literal = typing.get_origin(kinds[0]) is Literal
    return typing.get_args(kinds[0]) if literal else ()


def _describe(kinds: tuple[Any, ...]) -> str:
    """Return the description of a type for the table and for errors."""
    if choices := _choices(kinds):
        return ", ".join(choices[:-1]) + " or " + choices[-1]
    names = {int: "integer", float: "number", bool: "boolean", str: "text"}
    return names[kinds[0]]


def _parse(variable: str, text: str, kinds: tuple[Any, ...]) -> object:
    """Return the value of ``text``. ``Config`` checks its range."""
    kind = str if _choices(kinds) else kinds[0]
    try:
        if text != text.strip() or not text or (kind is not str and "_" in text):
            raise ValueError
        return _BOOLEANS[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        expected = _describe(kinds)
        if kind is bool:
            expected += " (0, 1, false or true)"
        raise ValueError(
            f"{variable}: expected {expected}, got {text!r}; correct or unset it"
        ) from None


def _check(setting: dataclasses.Field[Any], value: object) -> None:
    """Raise unless ``value`` has the field's type and lies in its range."""
    kinds = _kinds()[setting.name]
    choices = _choices(kinds)
    kind = str if choices else kinds[0]
    if value is None and type(None) in kinds:
        return
    label = f"{setting.name} ({variable_name(setting)})"
    accepted = (int, float) if kind is float else (kind,)
    if not isinstance(value, accepted) or (
        isinstance(value, bool) and kind is not bool
    ):
        raise TypeError(f"{label}: expected {_describe(kinds)}, got {value!r}")
    if choices and value not in choices:
        raise ValueError(f"{label}: expected {_describe(kinds)}, got {value!r}")
    minimum = setting.metadata["minimum"]
    if (
        minimum is not None
        and isinstance(value, (int, float))
        and not minimum <= value < math.inf
    ):
        raise ValueError(f"{label}: must be at least {minimum} and finite, got {value}")


def _check_rank(
    rank_name: str, rank: int | None, size_name: str, size: int | None
) -> None:
    """Raise unless a rank and its size are both given and consistent, or absent."""
    if (rank is None) != (size is None):
        missing = rank_name if rank is None else size_name
        given = size_name if rank is None else rank_name
        raise ValueError(f"{given} is set without {missing}; set both or neither")
    if rank is not None and size is not None and rank >= size:
        raise ValueError(
            f"{rank_name} must be less than {size_name}, got {rank} and {size}"
        )


def _unknown(variable: str, settings: Mapping[str, object]) -> str:
    """Return the error text for an unknown variable."""
    return f"unknown variable {variable}{did_you_mean(variable, settings, cutoff=0)}"


if __name__ == "__main__":
    print(render_documentation(), end="")
