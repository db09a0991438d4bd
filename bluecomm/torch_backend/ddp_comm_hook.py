"""Gradient algorithms as communication hooks of torch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import torch.distributed as dist

from bluecomm.compression import Compression, Compressor
from bluecomm.ops.reduce_op import Average, ReduceOp
from bluecomm.optim.algorithm import Algorithm
from bluecomm.optim.chosen_algorithm import check_honoured, make_algorithm
from bluecomm.optim.ddp_exchange import CALL, DdpExchange
from bluecomm.optim.options import CommonOptions
from bluecomm.optim.registry import (
    get_algorithm,
    name_of,
    names_that_work_in_backward,
    works_in_backward,
)
from bluecomm.runtime import Communicator, current_communicator

__all__ = ["ddp_comm_hook"]


class DdpCommHook:
    """A communication hook of one model; ``ddp_comm_hook`` makes it.

    Args:
        name: Name of the algorithm, for torch's log.
        make: Returns a new algorithm.
        options: Options that do not depend on the algorithm.
    """

    def __init__(
        self, name: str, make: Callable[[], Algorithm], options: CommonOptions
    ) -> None:
        self._make = make
        self._options = options
        self._state: Mapping[str, Any] = {}
        # None before the first backward pass, and in a group of one.
        self._exchange: DdpExchange | None = None
        self._is_alone = False
        # torch shows the name in its log.
        self.__name__ = self.__qualname__ = f"bluecomm_{name}"

    def __call__(self, state: Any, bucket: Any) -> torch.futures.Future[torch.Tensor]:
        """Exchange a bucket of the registered model.

        Args:
            state: The process group, or ``None`` for the default one.
            bucket: torch's ``GradBucket``.
        """
        if self._exchange is None and not self._is_alone:
            comm = _communicator(state)
            self._is_alone = comm.size == 1
            if not self._is_alone:
                self._exchange = DdpExchange(
                    self._make, self._options, comm, self._state
                )
        if self._exchange is not None:
            return self._exchange.exchange(bucket)
        own = torch.futures.Future[torch.Tensor]()
        own.set_result(bucket.buffer())
        return own

    def state_dict(self) -> dict[str, Any]:
        """Return this rank's state of the algorithm, for its checkpoint.

        Call it between two steps. Only ``powersgd`` has one; it differs between ranks.
        """
        exchange = self._exchange
        return dict(self._state) if exchange is None else exchange.state_dict()

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state that ``state_dict`` returned for the same model.

        Raises:
            ValueError: The state belongs to another model, or to other options. Before
                the first backward pass, that pass raises it.
        """
        self._state = state_dict
        if self._exchange is not None:
            self._exchange.load_state_dict(state_dict)


# torch compares them with its classes.
DdpCommHook.__call__.__annotations__ = {
    "bucket": dist.GradBucket,  # type: ignore[attr-defined]
    "return": torch.futures.Future[torch.Tensor],
}


def ddp_comm_hook(
    algorithm: str | type[Algorithm] = "gradient_allreduce",
    *,
    compression: type[Compressor] = Compression.none,
    op: ReduceOp = Average,
    gradient_predivide_factor: float = 1.0,
    **algorithm_options: Any,
) -> DdpCommHook:
    """Return a communication hook for torch's ``DistributedDataParallel``.

    ::

        model = DistributedDataParallel(model)
        model.register_comm_hook(None, bf.ddp_comm_hook("bytegrad"))

    The algorithm then exchanges the gradients of the model, over bluecomm's engine. The
    first argument of ``register_comm_hook`` is the process group of the model; ``None``
    for the default one. It may have any backend. If that is not ``"bluecomm"``, call
    ``bluecomm.init`` first. Make one hook for each model. Gradients on a GPU stay
    there, if the algorithm works on devices.

    Args:
        algorithm: Name or class of an algorithm that exchanges gradients and needs no
            optimizer: ``gradient_allreduce``, ``bytegrad`` or ``powersgd``.
        compression: As in ``DistributedOptimizer``.
        op: As in ``DistributedOptimizer``.
        gradient_predivide_factor: As in ``DistributedOptimizer``.
        **algorithm_options: Options of the algorithm.

    Returns:
        A function of the state and a bucket that returns a future, with a
        ``state_dict`` and ``load_state_dict`` for checkpoints. It raises

        - ValueError if a gradient is sparse, or belongs to a local parameter or to a
          second model, or if the job survives losses;
        - MismatchError if the ranks' options or buckets differ;
        - NotInitializedError if the group is not of bluecomm, and ``init`` has not been
          called;
        - BluecommError if the communication fails.

    Raises:
        TypeError: An option is wrong.
        ValueError: The algorithm does not exist, or cannot be a hook; or it does not
            use an option.

    Source:
        The interface: Li et al., "PyTorch Distributed", VLDB 2020, arXiv:2006.15704,
        and torch's page "DDP Communication Hooks".
    """
    kind = get_algorithm(algorithm)
    _check_kind(kind)
    options = CommonOptions(
        compression=compression,
        op=op,
        gradient_predivide_factor=gradient_predivide_factor,
        bucket_bytes=kind.default_bucket_nbytes,
    )
    check_honoured(CALL, kind, options)
    make_algorithm(CALL, kind, algorithm_options)  # its options are checked now
    return DdpCommHook(
        name_of(kind), lambda: make_algorithm(CALL, kind, algorithm_options), options
    )


def _communicator(state: object) -> Communicator:
    """Return the members of the process group that the user has registered.

    Raises:
        TypeError: The state is not a process group.
        ValueError: torch and bluecomm number the ranks in different ways, or the job
            survives losses.
        NotInitializedError: The group is not of bluecomm, and ``init`` has not been
            called.
    """
    # Loaded here, because few programs use torch.distributed.
    from bluecomm.torch_backend.group import BluecommProcessGroup
    from bluecomm.torch_backend.members import new_communicator

    group = dist.group.WORLD if state is None else state
    if not isinstance(group, dist.ProcessGroup):
        raise TypeError(
            f"{CALL}: the first argument of register_comm_hook must be a process group "
            f"or None, got {type(group).__name__}"
        )
    if isinstance(group, BluecommProcessGroup):
        comm = group._comm
    else:
        world = current_communicator().world
        if (dist.get_rank(), dist.get_world_size()) != (world.rank, world.size):
            raise ValueError(
                f"{CALL}: this process is rank {dist.get_rank()} of "
                f"{dist.get_world_size()} in torch.distributed, and rank {world.rank} "
                f"of {world.size} in bluecomm; start both with the same launcher"
            )
        comm = new_communicator(world, dist.get_process_group_ranks(group))
    if comm.world.members.survives_losses:
        raise ValueError(
            f"{CALL}: bfrun --on-failure continue does not cover communication hooks; "
            "leave the hook out, or use bf.DistributedOptimizer"
        )
    return comm


def _check_kind(kind: type[Algorithm]) -> None:
    """Raise unless an algorithm needs gradients only.

    Raises:
        ValueError: It does not.
    """
    if works_in_backward(kind):
        return
    if kind.flat_gradients:
        why = "does a part of its work in the optimizer's step, which a hook cannot see"
    else:
        why = (
            "does not average gradients, and DistributedDataParallel relies on equal "
            "parameters"
        )
    name = name_of(kind)
    raise ValueError(
        f"{CALL}: {name} {why}; use bf.DistributedOptimizer(..., algorithm={name!r}) "
        "without DistributedDataParallel, or a hook of "
        f"{' or '.join(names_that_work_in_backward())}"
    )
