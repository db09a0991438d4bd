"""Decides whether an optimizer is tuned, and with which settings."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Mapping
from pathlib import Path

import torch

from bluecomm._version import __version__
from bluecomm.compression import Compression
from bluecomm.config import Config
from bluecomm.ops.reduce_op import Adasum
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.autotune.decider import Decider
from bluecomm.optim.autotune.optuna_sampler import OptunaSampler
from bluecomm.optim.autotune.search import Limits, Search
from bluecomm.optim.autotune.sending import sending_choices
from bluecomm.optim.autotune.space import (
    ALLREDUCE_ALGORITHM,
    BUCKET_BYTES,
    Space,
    allreduce_algorithms,
    bucket_sizes,
)
from bluecomm.optim.autotune.tuned_file import TunedFile
from bluecomm.optim.autotune.tuning import COMPRESSION, Tuning
from bluecomm.optim.autotune.turns import Turns
from bluecomm.optim.model_facts import options_in_words
from bluecomm.optim.options import CommonOptions
from bluecomm.optim.parameter_names import NamedParameters
from bluecomm.optim.registry import name_of
from bluecomm.required_package import require_package
from bluecomm.runtime import Communicator
from bluecomm.runtime.world import World

_log = logging.getLogger("bluecomm")

_turns: weakref.WeakKeyDictionary[World, Turns] = weakref.WeakKeyDictionary()


def prepare_tuning(
    asked: bool | None,
    comm: Communicator,
    name: str,
    algorithm: Algorithm,
    options: CommonOptions,
    named: NamedParameters,
    *,
    has_groups: bool,
) -> Tuning | None:
    """Return the tuning of an optimizer that is being made, if it is to be tuned.

    Args:
        asked: The argument ``autotune`` of ``DistributedOptimizer``; ``None`` leaves it
            to the setting ``BLUECOMM_AUTOTUNE``, which has no effect, with a warning,
            on optimizers that cannot be tuned.
        comm: Ranks that take part.
        name: Name of the optimizer.
        algorithm: Its algorithm, not yet set up.
        options: Its options without autotuning.
        named: Its parameters.
        has_groups: Whether the user has assigned parameters to buckets.

    Raises:
        TypeError: ``asked`` is neither a bool nor ``None``.
        ValueError: The optimizer cannot be tuned, or the file is not one of autotune.
        ImportError: A package is missing.
    """
    if not (asked is None or isinstance(asked, bool)):
        raise TypeError(f"autotune must be True, False or None, got {asked!r}")
    if not (comm.world.config.autotune if asked is None else asked):
        return None
    if not comm.included or comm.size == 1:
        _log.info("%s: nothing to tune, because this rank trains alone", name)
        return None
    if obstacle := _obstacle(comm, algorithm, has_groups=has_groups):
        if asked:
            raise ValueError(f"DistributedOptimizer: autotune=True, but {obstacle}")
        level = logging.INFO if comm.rank else logging.WARNING
        _log.log(level, "%s: BLUECOMM_AUTOTUNE has no effect: %s", name, obstacle)
        return None
    space = _space(comm, algorithm, options, named)
    if space.size == 1:
        _log.info("%s: nothing to tune, because all settings are the same", name)
        return None
    decider = None
    if comm.rank == 0:
        facts = _facts(comm, algorithm, options, named, space)
        turns = _turns.setdefault(comm.world, Turns())
        decider = _make_decider(comm.world.config, name, space, facts, turns)
    return Tuning(comm, name, space, decider)


def _obstacle(comm: Communicator, algorithm: Algorithm, *, has_groups: bool) -> str:
    """Return why an optimizer cannot be tuned, as a clause, or ""."""
    if not algorithm.rebuckets:
        return (
            f"the algorithm {name_of(type(algorithm))} has no buckets that can change "
            "while it runs, or not with these options; leave autotune out, or use "
            "another algorithm"
        )
    if has_groups:
        return "groups= says which parameters are sent together; leave one of them out"
    if comm.world.members.survives_losses or comm.world.assignment.respawns:
        return (
            "with bfrun --on-failure continue ranks may be lost while they measure, "
            "and new ones would begin with other buckets; leave one of them out"
        )
    return ""


def _space(
    comm: Communicator,
    algorithm: Algorithm,
    options: CommonOptions,
    named: NamedParameters,
) -> Space:
    choices: dict[str, list[int | str]] = {
        BUCKET_BYTES: [*bucket_sizes(_nbytes(named), options.bucket_bytes)]
    }
    default: dict[str, int | str] = {BUCKET_BYTES: options.bucket_bytes}
    may_compress = (
        comm.world.config.autotune_compression
        and COMPRESSION in algorithm.honours
        and options.compression is Compression.none
        and options.op is not Adasum
    )
    if may_compress:
        choices[COMPRESSION] = ["none", "fp16"]
        default[COMPRESSION] = "none"
    algorithms = allreduce_algorithms(comm.size, comm.machine_size)
    may_choose = ALLREDUCE_ALGORITHM in algorithm.honours and options.op is not Adasum
    if may_choose and len(algorithms) > 1:
        choices[ALLREDUCE_ALGORITHM] = algorithms
        default[ALLREDUCE_ALGORITHM] = algorithms[0]
    for option, values in sending_choices(comm).items():
        choices[option] = values
        default[option] = values[-1]
    return Space(choices, default)


def _facts(
    comm: Communicator,
    algorithm: Algorithm,
    options: CommonOptions,
    named: NamedParameters,
    space: Space,
) -> Mapping[str, str]:
    """Return what the fastest setting depends on."""
    config = comm.world.config
    return {
        "bluecomm": __version__,
        "torch": torch.__version__,
        "ranks": str(comm.size),
        "machines": str(comm.machine_size),
        "transport": config.transport,
        "encryption": config.encryption,
        **options_in_words(algorithm, options),
        "algorithm": name_of(type(algorithm)),
        "parameters": f"{len(named)} with {_nbytes(named)} bytes",
        "choices": str(
            {option: list(values) for option, values in space.choices.items()}
        ),
    }


def _make_decider(
    config: Config, name: str, space: Space, facts: Mapping[str, str], turns: Turns
) -> Decider:
    file = (
        None if config.autotune_file is None else TunedFile(Path(config.autotune_file))
    )
    known = None if file is None else file.find(name, facts, space)
    picture = None if config.autotune_plot is None else Path(config.autotune_plot)
    search = None
    if known is None:
        user = "autotune (BLUECOMM_AUTOTUNE)"
        require_package("optuna", "4.0", user, "; or pip install 'bluecomm[autotune]'")
        if picture is not None:
            require_package("matplotlib", "3.5", "BLUECOMM_AUTOTUNE_PLOT")
        limits = Limits(
            trials=config.autotune_trials,
            warmup_s=config.autotune_warmup_s,
            sample_s=config.autotune_sample_s,
        )
        search = Search(space, OptunaSampler(space), limits)
    return Decider(
        name,
        space,
        search,
        known=known,
        file=file,
        facts=facts,
        turns=turns,
        picture=picture,
    )


def _nbytes(named: NamedParameters) -> int:
    return sum(p.numel() * p.element_size() for _, p in named)
