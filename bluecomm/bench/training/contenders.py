"""Contenders: the ways to train whose steps are timed."""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from bfrun.wording import did_you_mean
from bluecomm import DistributedOptimizer, algorithm_names, size, win_free
from bluecomm.bench.process_groups.groups import BLUECOMM, ORDINARY_BUCKETS, Groups
from bluecomm.bench.results import GLOO
from bluecomm.bench.sizes import parse_size
from bluecomm.bench.training.model_placement import ModelPlacement
from bluecomm.optim import Algorithm
from bluecomm.optim.registry import get_algorithm
from bluecomm.runtime import Communicator
from bluecomm.topology import OnePeerExponential, default_schedule

ALONE = "none"
DDP = "ddp"
FSDP = "fsdp"
_SILENT = "silent"
SILENT_DDP = f"{DDP}:{_SILENT}"

# Names that are not algorithms of DistributedOptimizer.
_PLAIN = (ALONE, DDP, FSDP)

_NEIGHBOR = "neighbor_allreduce"
_MACHINES = "hierarchical_neighbor_allreduce"
_AVERAGING = ("allreduce", _NEIGHBOR, _MACHINES)
# The algorithms that exchange tensors of GPUs through NCCL in each step.
_THROUGH_NCCL = frozenset(
    {
        *("gradient_allreduce", "powersgd", "demo", *_AVERAGING, "gossip_pga"),
        *("exact_diffusion", "d2", "extra", "decentlam"),
        *("gradient_tracking", "push_diging", "momentum_tracking"),
    }
)


@dataclasses.dataclass(frozen=True)
class Contender:
    """A way to train, as the command line names it: ``NAME[:OPTION]...``.

    Attributes:
        label: The text on the command line.
        name: ``none``, ``ddp``, ``fsdp`` (``fully_shard`` of each layer), or a
            registered algorithm.
        order: ``cta`` or ``atc``, for parameter averaging.
        is_static: Whether it averages with all in-neighbors in each step.
        bucket_nbytes: Bytes of a bucket; ``None``: the algorithm's default.
        every: Steps from one round of parameter averaging to the next.
        lr_factor: Factor of the optimizer's rate in a training of ``compare``.
        backend: Name of torch's process group among the groups, for ``ddp`` and
            ``fsdp``.
        communicates: Whether ``ddp`` reduces its buckets; otherwise only its own copies
            remain, which take the same time with each backend.
        settings: Options of the algorithm itself, and their values.
    """

    label: str
    name: str
    order: str = "cta"
    is_static: bool = False
    bucket_nbytes: int | None = None
    every: int = 1
    lr_factor: float = 1.0
    backend: str = GLOO
    communicates: bool = True
    settings: tuple[tuple[str, float], ...] = ()

    @classmethod
    def parse(cls, label: str) -> Contender:
        """Parse a contender.

        Raises:
            ValueError: The name or an option is unknown.
        """
        name, *options = label.split(":")
        known = [*_PLAIN, *algorithm_names()]
        if name not in known:
            raise ValueError(
                f"algorithm must be one of {', '.join(known)}: {label!r}"
                f"{did_you_mean(name, known)}"
            )
        found = cls(label, name)
        if algorithm := found.algorithm:
            every = algorithm.default_steps_per_communication
            found = dataclasses.replace(found, every=every)
        for option in options:
            found = dataclasses.replace(found, **found._meaning_of(option))
        return found

    def _meaning_of(self, option: str) -> dict[str, Any]:
        if option in ("cta", "atc") and self.name in _AVERAGING:
            return {"order": option}
        if option == "static" and self.name in (_NEIGHBOR, _MACHINES):
            return {"is_static": True}
        if option == BLUECOMM and self.needs_groups:
            return {"backend": option}
        if option == "ordinary" and self.backend == BLUECOMM and self.name == DDP:
            return {"backend": ORDINARY_BUCKETS}
        if option == _SILENT and self.name == DDP:
            return {"communicates": False}
        if option.startswith("bucket=") and self.name not in (ALONE, FSDP):
            return {"bucket_nbytes": parse_size(option.removeprefix("bucket="))}
        steps = option.removeprefix("every=")
        if steps != option and self._averages and steps.isdecimal() and int(steps):
            return {"every": int(steps)}
        setting, _, value = option.partition("=")
        if setting == "lr_factor" and self.algorithm is not None:
            with contextlib.suppress(ValueError):
                if 0 < float(value) < math.inf:
                    return {"lr_factor": float(value)}
        if setting in self._names_of_settings():
            with contextlib.suppress(ValueError, SyntaxError):
                number = ast.literal_eval(value)
                if isinstance(number, (int, float)):  # bool, too
                    return {"settings": (*self.settings, (setting, number))}
        raise ValueError(
            f"{self.name} has no option {option!r}; options are bucket=SIZE, for "
            "parameter averaging also atc and every=STEPS, for neighbors also static, "
            "for algorithms lr_factor=FACTOR, "
            "for ddp and fsdp bluecomm, for ddp also silent (without communication), "
            "for ddp:bluecomm also ordinary, and the algorithm's own numbers and truth "
            f"values{self._example()}"
        )

    def _names_of_settings(self) -> list[str]:
        """Return the names of the algorithm's own options."""
        if self.algorithm is None:
            return []
        return list(inspect.signature(self.algorithm).parameters)

    def _example(self) -> str:
        names = self._names_of_settings()
        return f": {', '.join(names)}" if names else ", such as outer_lr=2.0"

    @property
    def algorithm(self) -> type[Algorithm] | None:
        """Its algorithm; ``None`` if it trains without ``DistributedOptimizer``."""
        return None if self.name in _PLAIN else get_algorithm(self.name)

    @property
    def needs_all_ranks(self) -> bool:
        """Whether it can be measured only among all ranks of the job."""
        return self.algorithm is not None and self.algorithm.has_windows

    @property
    def depends_on_speed(self) -> bool:
        """Whether the result of a training depends on the speed of ranks and links."""
        return self.algorithm is not None and self.algorithm.depends_on_speed

    @property
    def needs_groups(self) -> bool:
        """Whether it communicates through a process group of torch."""
        return self.name in (DDP, FSDP)

    @property
    def needs_nccl(self) -> bool:
        """Whether NCCL carries out an exchange of each step, where it may be used."""
        return self.name in _THROUGH_NCCL and self.every == 1

    @property
    def _averages(self) -> bool:
        return self.algorithm is not None and self.algorithm.flat_parameters


def default_names(*, with_groups: bool = True) -> list[str]:
    """Return the default contenders: the baselines and the basic algorithms.

    The other algorithms combine one or two of the same exchanges.

    Args:
        with_groups: Whether process groups of torch may be used.
    """
    baselines = [ALONE, DDP] if with_groups else [ALONE]
    return [*baselines, "gradient_allreduce", *_AVERAGING, "local"]


@dataclasses.dataclass(frozen=True)
class Training:
    """A model that is being trained.

    Attributes:
        optimizer: The distributed optimizer, or the plain one.
        step: Runs a step.
        finish: Completes the communication of the last step.
        wait: Waits until the GPU has computed all steps, if there is one.
        end: Frees what the ranks have created together; collective.
    """

    optimizer: torch.optim.Optimizer
    step: Callable[[], None]
    finish: Callable[[], None]
    wait: Callable[[], None]
    end: Callable[[], object]


class Trainer:
    """Starts trainings among the first ranks of the world.

    Args:
        comm: The ranks that train.
        groups: torch's groups of the same ranks, if a contender needs them.
        make_model: Creates a model whose forward pass returns the loss.
        make_optimizer: Creates a plain optimizer for parameters.
        placement: Where the models are. Default: on the host.
    """

    def __init__(
        self,
        comm: Communicator,
        groups: Groups,
        make_model: Callable[[], nn.Module],
        make_optimizer: Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer],
        placement: ModelPlacement | None = None,
    ) -> None:
        self._comm = comm
        self._groups = groups
        self._make_model = make_model
        self._make_optimizer = make_optimizer
        self._placement = placement or ModelPlacement()

    def start(self, contender: Contender) -> Training:
        """Start a new training; collective."""
        model = self._placement.move_model(self._make_model())
        if self._comm.size > 1 and contender.name == DDP:
            model = self._ddp(contender, model)
        elif self._comm.size > 1 and contender.name == FSDP:
            self._shard(contender, model)
        algorithm = contender.algorithm
        optimizer: Any = None
        if algorithm is not None:
            optimizer = algorithm.needed_optimizer(model.parameters(), 1e-6, 1)
        if optimizer is None:
            optimizer = self._make_optimizer(model.parameters())
        finish: Callable[[], None] = _do_nothing
        if algorithm is not None:
            optimizer = distribute(contender, model, optimizer, self._comm)
            if algorithm.flat_parameters:
                finish = (
                    optimizer.synchronize
                )  # otherwise it would send gradients again
        x = self._placement.move(torch.ones(1))

        def step() -> None:
            optimizer.zero_grad()
            model(x).backward()
            optimizer.step()

        end = functools.partial(end_training, contender, optimizer)
        return Training(optimizer, step, finish, self._placement.wait, end)

    def _ddp(self, contender: Contender, model: nn.Module) -> nn.Module:
        options: dict[str, Any] = {}
        if contender.bucket_nbytes is not None:
            options["bucket_cap_mb"] = contender.bucket_nbytes / (1 << 20)
        wrapped = nn.parallel.DistributedDataParallel(
            model, process_group=self._groups[contender.backend], **options
        )
        if not contender.communicates:
            # torch checks annotations, which are text in this file; a lambda has none.
            wrapped.register_comm_hook(None, lambda _, bucket: _future(bucket.buffer()))
        return wrapped

    def _shard(self, contender: Contender, model: Any) -> None:
        from torch.distributed.fsdp import fully_shard

        mesh = DeviceMesh.from_group(self._groups[contender.backend], "cpu")
        for layer in model.layers:
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)


def distribute(
    contender: Contender,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    comm: Communicator,
    **options: object,
) -> Any:
    """Return the distributed form of an optimizer with a contender's algorithm.

    Args:
        contender: A contender with an algorithm.
        model: The model.
        optimizer: The plain optimizer.
        comm: The ranks that train.
        **options: More options of the algorithm.
    """
    given: dict[str, Any] = {"num_steps_per_communication": contender.every, **options}
    given.update(contender.settings)
    if contender.name in _AVERAGING:
        given["order"] = contender.order
    if not contender.is_static and comm.size > 1:
        given.update(_one_peer(contender.name, comm))
    return DistributedOptimizer(
        optimizer,
        model,
        algorithm=contender.name,
        bucket_bytes=contender.bucket_nbytes,
        process_set=None if comm.size == size() else comm,
        **given,
    )


def end_training(contender: Contender, optimizer: Any) -> None:
    """Free what the algorithm holds, and stop what it does in the background.

    Otherwise its rounds would disturb the contenders after it. Collective.
    """
    if contender.needs_all_ranks:
        win_free()
        return
    if contender.algorithm is not None and contender.algorithm.ends_with_others:
        # The training has noticed that values are not finite.
        with contextlib.suppress(FloatingPointError):
            optimizer.abort()


def _one_peer(name: str, comm: Communicator) -> dict[str, object]:
    """Return the option that makes an algorithm use one neighbor per step."""
    if name == _NEIGHBOR:
        return {"topology": default_schedule(comm.layout.machine_of)}
    if name == _MACHINES:
        return {"topology": OnePeerExponential(comm.machine_size)}
    return {}


def _future(value: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    done.set_result(value)
    return done


def _do_nothing() -> None:
    pass
