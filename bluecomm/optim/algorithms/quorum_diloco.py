"""DiLoCo that waits for no straggler: a quorum of the ranks makes an outer step."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from bluecomm.device.values import values_beside, values_on_host
from bluecomm.ops.tensor import shared_empty
from bluecomm.optim.algorithms.outer_step import check_outer
from bluecomm.optim.background_algorithm import BackgroundAlgorithm
from bluecomm.optim.buckets.bucket import Bucket
from bluecomm.optim.buckets.bucket_state import BucketState
from bluecomm.optim.finite import is_finite
from bluecomm.optim.kept_progress import replace_base
from bluecomm.optim.quorum.links import SERVER, Link, RemoteLink
from bluecomm.optim.quorum.rounds import Progress, RoundOptions
from bluecomm.optim.quorum.server import QuorumServer
from bluecomm.optim.registry import register_algorithm
from bluecomm.runtime import Communicator
from bluecomm.topology.graph import check_integer

_log = logging.getLogger("bluecomm")


@register_algorithm("quorum_diloco")
class QuorumDiLoCo(BackgroundAlgorithm):
    """DiLoCo whose outer step waits for a quorum of the ranks, and no rank for it.

    A rank takes local steps. After at least ``num_steps_per_communication`` of them (10
    by default), at the end of a step, it sends its progress ``D_i`` since it last sent
    to the first rank, and goes on. With ``D_i`` the progress in ``h_i`` steps of the
    ranks that have sent in this round, and ``m = 0`` at the start, the first rank
    computes::

        D = sum_i h_i D_i / sum_i h_i,    m <- momentum * m + D,
        p <- p - lr * (D + momentum * m)

    A round closes once ``quorum`` ranks have sent, after a ``grace`` for the others.
    Progress that comes later counts in the next round. The ranks of the round get
    ``p``, and keep the steps since they sent: ``x_i <- p + (x_i - s_i)``, with ``s_i``
    what they had then. All ranks must start equal.

    A rank that has finished, or makes another optimizer for its model, takes part
    without steps until all ranks have; then all ranks have the bits of ``p``. ``abort``
    does the same without the end, and ``resume``, on all ranks, goes on. Until
    ``abort`` or ``shutdown``, the model stays in memory, also if the program has
    dropped it.

    Args:
        quorum: Number of ranks that a round needs. Default: more than half of them.
        grace: How long a round waits for the other ranks once it has a quorum, as a
            multiple of the time that the quorum has taken; at least 0.
        outer_lr: Rate of the outer step.
        outer_momentum: From 0 to less than 1.

    Raises:
        TypeError: ``quorum`` is not an integer.
        ValueError: An option is out of its range.

    Source:
        Douillard et al., "Decoupled DiLoCo for Resilient Distributed Pre-training",
        2026, arXiv:2604.21428: a minimum quorum, a grace window, and weights
        ``tokens^2 / steps``, which are proportional to the steps if each step has as
        many tokens. The weights are those of summaries by others, and the rule for the
        grace is ours, because the paper's text was not available. The paper's fragments
        are left out.
    """

    works_on_devices = True
    flat_parameters = True
    honours = frozenset({"backward_passes_per_step", "num_steps_per_communication"})
    # Progress that comes late acts like momentum, so rounds are shorter, and the outer
    # momentum is smaller, than those of diloco.
    default_steps_per_communication = 10

    def __init__(
        self,
        *,
        quorum: int | None = None,
        grace: float = 0.2,
        outer_lr: float = 0.7,
        outer_momentum: float = 0.6,
    ) -> None:
        check_outer(outer_lr=outer_lr, outer_momentum=outer_momentum)
        if quorum is not None:
            check_integer(quorum, "quorum", minimum=1)
        if not grace >= 0:
            raise ValueError(f"grace must be at least 0, got {grace}")
        self._quorum = quorum
        self._grace = grace
        self._lr = outer_lr
        self._momentum = outer_momentum
        self._buckets: Sequence[Bucket] = ()
        # Steps since this rank last sent its progress.
        self._steps = 0
        self._is_new = True
        self._is_open = False
        # Whether progress has been sent that has not been answered.
        self._is_waiting = False
        self._failure: Exception | None = None

    @classmethod
    def memory_in_models(cls, ranks: int, neighbors: int) -> int:
        # The server has base, p, m, a message of each rank, and the answer.
        return 2 + 4 + ranks

    def check_optimizer(
        self, optimizer: torch.optim.Optimizer, comm: Communicator
    ) -> None:
        if self._quorum is not None and self._quorum > comm.size:
            raise ValueError(
                f"DistributedOptimizer: quorum_diloco with quorum={self._quorum} needs "
                f"as many ranks, but there are {comm.size}; use a lower quorum"
            )

    def setup(self, buckets: Sequence[Bucket]) -> None:
        for bucket in buckets:
            bucket.lay_out_parameters(halves=1)
        self._buckets = buckets
        self._memory = BucketState(buckets, ("base",))
        # On the host, as messages are.
        self._sent = [shared_empty(bucket.numel, bucket.dtype) for bucket in buckets]
        self._link: Link
        self._server: QuorumServer | None = None
        comm = self.context.comm
        if comm.rank == SERVER:
            options = RoundOptions(
                self._quorum or comm.size // 2 + 1,
                self._grace,
                self._lr,
                self._momentum,
            )
            self._link = self._server = QuorumServer(self.context, buckets, options)
        else:
            self._link = RemoteLink(self.context)

    # -- events ------------------------------------------------------------------------

    def before_step(self) -> None:
        if self._is_on:
            self._begin()

    def after_step(self) -> None:
        self._steps += 1
        if not self._is_on:
            return
        self._check()
        self._take_answer()
        if (
            not self._is_waiting
            and self._steps >= self.context.options.num_steps_per_communication
        ):
            self._send(is_ending=False)
            # A world of one has its answer at once.
            self._take_answer()

    def _begin(self) -> None:
        """Take the parameters with which the training begins, and serve."""
        if self._is_open:
            return
        self._check()
        if self._is_new:
            self._is_new = False
            for bucket in self._buckets:
                current = bucket.parameters.current
                self._memory.of("base", bucket).copy_(current)
            if self._server is not None:
                self._server.begin()
        self._is_open = True
        self._link.open()

    def _check(self) -> None:
        """Adopt parameters that were given other memory; raise if the server failed."""
        if self._failure is not None:
            raise self._failure
        for bucket in self._buckets:
            if adopted := bucket.parameters.check():
                _log.warning(
                    "%s: copied in parameters that were given other memory: %s",
                    self.context.name,
                    ", ".join(adopted),
                )
        if self._server is not None:
            self._server.check()

    # -- progress and answers ----------------------------------------------------------

    def _send(self, *, is_ending: bool) -> None:
        """Send the progress since the last time.

        Raises:
            FloatingPointError: The progress is not finite. The rank has returned to
                what it last sent, and has sent no progress. If it is ending, it has
                sent a message without steps.
        """
        found: list[str] = []
        for bucket, sent in zip(self._buckets, self._sent, strict=True):
            self._put_progress(bucket, sent)
            if not is_finite(sent):
                found += [
                    slot.name
                    for slot in bucket.slots
                    if not is_finite(slot.view_of(sent))
                ]
        for bucket in self._buckets:
            current, base = bucket.parameters.current, self._memory.of("base", bucket)
            (current if found else base).copy_(base if found else current)
        steps, self._steps = (0 if found else self._steps), 0
        if not found or is_ending:
            with self._keeping_failures():
                self._link.send(Progress(self._sent, steps, is_ending))
            self._is_waiting = True
        if found:
            raise FloatingPointError(
                f"{self.context.name}: the progress of rank "
                f"{self.context.comm.world.rank} is not finite in "
                f"{', '.join(map(repr, found))}, so its steps since it last sent its "
                "progress are lost. Lower the learning rate, clip gradients, or skip "
                "steps whose loss is not finite, as torch.amp.GradScaler does"
            )

    def _put_progress(self, bucket: Bucket, into: torch.Tensor) -> None:
        """Write the progress in a bucket to memory of the host.

        Waits for the device of the parameters.
        """
        base, current = self._memory.of("base", bucket), bucket.parameters.current
        if bucket.staging is None:
            torch.sub(base, current, out=into)
            return
        limit_s = self.context.comm.world.config.operation_timeout_s
        into.copy_(values_on_host(base - current, bucket.name, limit_s))

    def _take_answer(self) -> None:
        """Apply the answer, if it has come."""
        if self._is_waiting and self._link.is_answered():
            self._apply_answer()

    def _apply_answer(self) -> bool:
        """Wait for the answer and apply it; return whether all ranks have ended.

        Raises:
            RuntimeError: The first rank can no longer make outer steps.
            BluecommError: A rank is lost, or the deadline has passed.
        """
        with self._keeping_failures():
            answer = self._link.answer()
            if answer.error:
                raise RuntimeError(
                    f"{self.context.name}: rank {self.context.comm.ranks[SERVER]} "
                    "makes the outer steps of quorum_diloco, and can no longer do so: "
                    f"{answer.error}. Start again from a checkpoint"
                )
        self._is_waiting = False
        for bucket, outer in zip(self._buckets, answer.values, strict=True):
            base = self._memory.of("base", bucket)
            there = values_beside(base, outer)
            replace_base(bucket.parameters.current, base, there)
            base.copy_(there)
        return answer.all_end

    @contextlib.contextmanager
    def _keeping_failures(self) -> Iterator[None]:
        """Keep an error of the link, which all later steps raise, too."""
        try:
            yield
        except Exception as error:
            self._failure = error
            raise

    # -- the end -----------------------------------------------------------------------

    def end_together(self) -> None:
        self._begin()
        self._check()
        failure: FloatingPointError | None = None
        all_end = False
        while not all_end:
            if not self._is_waiting:
                try:
                    self._send(is_ending=True)
                except FloatingPointError as error:
                    failure = error
            all_end = self._apply_answer()
        self._is_open = False
        if failure is not None:
            raise failure

    # -- state -------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:
        if self._is_new:
            return {}
        state: dict[str, Any] = {
            "memory": self._memory.state_dict(),
            "steps": self._steps,
        }
        if self._server is not None:
            state["server"] = self._server.state_dict()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that ``state_dict`` returned.

        Raises:
            RuntimeError: Progress is under way, which belongs to the state before.
        """
        if self._is_waiting or (self._server is not None and not self._server.is_idle):
            raise RuntimeError(
                f"{self.context.name}: quorum_diloco cannot load a state while "
                "progress is under way; call optimizer.abort() on all ranks first, and "
                "optimizer.resume() afterwards"
            )
        memory = state.get("memory", {})
        self._is_new = not memory
        self._steps = state.get("steps", 0)
        self._memory.load_state_dict(memory)
        if self._server is not None:
            # A state that another rank has saved has no outer parameters.
            outer = {"memory": {"outer": memory.get("base", {})}}
            self._server.load_state_dict(state.get("server", outer))
