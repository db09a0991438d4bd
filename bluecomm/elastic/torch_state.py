"""A state of models, optimizers and samplers, and of Python objects."""

from __future__ import annotations

import contextlib
import logging
import os
from typing import Any

import torch
from torch import nn

from bluecomm.elastic.group import current_group
from bluecomm.elastic.handlers import (
    Handler,
    ModelHandler,
    OptimizerHandler,
    handler_of,
)
from bluecomm.elastic.kept import KeptStates
from bluecomm.elastic.snapshot import snapshot
from bluecomm.elastic.state import ObjectState
from bluecomm.errors import BluecommError, HorovodInternalError
from bluecomm.ops.barrier import barrier
from bluecomm.ops.objects import broadcast_object
from bluecomm.runtime import Communicator

_log = logging.getLogger("bluecomm")


class TorchState(ObjectState):
    """A state of models, optimizers and samplers, and of Python objects.

    All of them are its attributes. Models, optimizers, an ``ElasticSampler``, and other
    objects with ``state_dict`` and ``load_state_dict``, such as schedulers of the
    learning rate, stay the same objects, and only their content is saved and restored.
    All other attributes must be objects that can be pickled.

    Args:
        model: A model, if there is one.
        optimizer: Its optimizer, plain or distributed, if there is one.
        keep: Folder to which one rank of each machine writes each commit, such as
            ``/dev/shm/NAME``. If a launcher starts all ranks again, the first ``sync``
            goes on with the newest commit that any rank finds in its folder. Give each
            job a name of its own. ``run`` removes the files after its function.
        **attributes: Names and values of further attributes.

    Raises:
        ValueError: A name is that of a method, or an optimizer has no parameter of the
            models.
        TypeError: A value cannot be copied.
        OSError: The folder cannot be used.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        keep: str | os.PathLike[str] | None = None,
        **attributes: Any,
    ) -> None:
        everything = {"model": model, "optimizer": optimizer, **attributes}
        found = {name: handler_of(value) for name, value in everything.items()}
        self._handlers = {name: one for name, one in found.items() if one is not None}
        self._saved_parts: dict[str, Any] = {}
        self._spare_parts: dict[str, Any] = {}
        self._kept = None if keep is None else KeptStates(keep)
        self._was_synced = False
        plain = [name for name in everything if name not in self._handlers]
        super().__init__(**{name: everything[name] for name in plain})
        for name in self._handlers:
            self._add(name, everything[name])
        self._check_optimizers()

    def __setattr__(self, name: str, value: Any) -> None:
        handlers = self.__dict__.get("_handlers", {})
        if name in handlers:
            handler = handler_of(value)
            if type(handler) is not type(handlers[name]):
                raise TypeError(
                    f"{self._kind}: {name!r} is {handlers[name].kind}, and cannot "
                    f"become {type(value).__name__}; use an attribute of another name"
                )
            handlers[name] = handler
        super().__setattr__(name, value)

    def save(self) -> None:
        """Save the state in memory, and in the folder if there is one.

        Waits for the optimizers' communication under way.

        Raises:
            TypeError: A value cannot be copied or pickled.
            OSError: The file cannot be written.
        """
        # Only this step can fail because of other ranks, so it comes before anything is
        # overwritten.
        parts = {name: handler.read() for name, handler in self._handlers.items()}
        super().save()
        copies = snapshot(parts, self._spare_parts)
        self._spare_parts, self._saved_parts = self._saved_parts, copies
        group = current_group()
        if self._kept is not None and self._commits and group.local_rank == 0:
            state = {"parts": copies, "attributes": self._pickled()}
            self._kept.write(self._commits, group.world.rank, state)

    def restore(self) -> None:
        """Go back to the state that was saved last."""
        for name, handler in self._handlers.items():
            _load(handler, snapshot(self._saved_parts[name]))
        super().restore()

    def hand_over(
        self, group: Communicator, donor: int, name: str, *, keeps: bool = False
    ) -> None:
        """Give newcomers the state of the donor; see ``ObjectState.hand_over``."""
        if group.world.rank != donor and not keeps:
            # A newcomer never returns to its first state, so the new state is saved in
            # the memory of the first copy. That takes less time, and the other ranks
            # wait for the newcomer meanwhile.
            self._spare_parts, self._saved_parts = self._saved_parts, {}
        try:
            super().hand_over(group, donor, name, keeps=keeps)
        finally:
            if not self._saved_parts:  # it has failed
                self._saved_parts = self._spare_parts

    def reset(self) -> None:
        """Share out the rest of the samplers' epochs among the ranks that are left."""
        for handler in self._handlers.values():
            handler.reset()

    def on_finish(self) -> None:
        """Remove the files, once all ranks have finished. Collective."""
        if self._kept is None:
            return
        group = current_group()
        # Ranks may be lost here, too, but the training is over, so nothing is retried.
        with contextlib.suppress(BluecommError):
            barrier(process_set=group)
        if group.local_rank == 0:
            self._kept.remove()

    def newest_commit(self) -> int:
        """Return the number of the newest commit in memory or in the folder."""
        if self._kept is None or self._was_synced:
            return self._commits
        return max(self._commits, self._kept.newest())

    def prepare_sync(self, group: Communicator, root: int, name: str) -> None:
        """Have the root load the newest commit of its folder, at the first sync.

        Raises:
            ValueError: The root cannot load it. All ranks raise this.
        """
        if self._kept is None or self._was_synced:
            return
        problem = ""
        if group.world.rank == root and self._kept.newest() == self._commits > 0:
            try:
                self._load_kept(self._kept.read(self._commits))
            except Exception as error:
                problem = (
                    f"{self._kind}.sync: rank {root} cannot go on with commit "
                    f"{self._commits} in {self._kept.folder}: {error}; remove the "
                    "folder to start anew, or choose another one with keep="
                )
        problem = broadcast_object(problem, root, f"{name}.kept", process_set=group)
        if problem:
            raise ValueError(problem)

    def sync_parts(self, group: Communicator, root: int, name: str) -> None:
        """Give all ranks of a group the root's models, optimizers and others."""
        for key, handler in self._handlers.items():
            handler.sync(group, root, f"{name}.{key}")
        self._was_synced = True

    def hand_over_parts(
        self, group: Communicator, donor: int, name: str, keeps: bool
    ) -> None:
        """Give newcomers the donor's parts; one that keeps its own takes the rest."""
        for key, handler in self._handlers.items():
            handler.hand_over(group, donor, f"{name}.{key}", keeps)
        self._was_synced = True

    def _facts(self) -> dict[str, str]:
        facts = super()._facts()
        for name, handler in self._handlers.items():
            facts[f"attribute {name!r}"] = handler.kind
        return {**facts, "keep": "not given" if self._kept is None else "given"}

    def _check_optimizers(self) -> None:
        """Raise if an optimizer belongs to another model.

        Raises:
            ValueError: An optimizer has no parameter of the models.
        """
        models = {
            name: {id(parameter) for parameter in handler.value.parameters()}
            for name, handler in self._handlers.items()
            if isinstance(handler, ModelHandler)
        }
        of_models = set().union(*models.values())
        for name, handler in self._handlers.items():
            if not (of_models and isinstance(handler, OptimizerHandler)):
                continue
            groups = handler.value.param_groups
            if of_models.isdisjoint(id(p) for group in groups for p in group["params"]):
                raise ValueError(
                    f"{self._kind} on rank {current_group().world.rank}: {name!r} "
                    f"({type(handler.value).__name__}) has no parameter of "
                    f"{', '.join(map(repr, models))}; pass the optimizer that was made "
                    "for the model"
                )

    def _load_kept(self, state: dict[str, Any]) -> None:
        """Go to a state from a file.

        Raises:
            ValueError: It has other attributes.
        """
        given = {*state["parts"], *state["attributes"]}
        mine = {*self._handlers, *self._names}
        if given != mine or state["parts"].keys() != self._handlers.keys():
            raise ValueError(
                f"it has the attributes {sorted(given)}, but the state has "
                f"{sorted(mine)}"
            )
        for name, handler in self._handlers.items():
            try:
                handler.load(state["parts"][name])
            except Exception as error:
                raise ValueError(f"attribute {name!r} does not fit: {error}") from error
        self._unpickle(state["attributes"])


def _load(handler: Handler[Any], content: Any) -> None:
    """Load the content, even if communication under way has failed."""
    try:
        handler.load(content)
    except HorovodInternalError as error:
        # A round that was under way when a rank was lost. It has ended now.
        _log.info("elastic: a round ended with an error: %s", error)
        handler.load(content)
