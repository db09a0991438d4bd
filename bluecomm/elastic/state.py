"""The state of a training, which ranks commit, restore and give to each other."""

from __future__ import annotations

import abc
import pickle
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol

from bluecomm.elastic.agreement import Agreement
from bluecomm.elastic.group import current_group, survives_losses, use_group
from bluecomm.elastic.snapshot import snapshot
from bluecomm.ops.objects import allgather_object, broadcast_object
from bluecomm.ops.refusal import refusing
from bluecomm.optim.agreement import FIRST_OPERATION, check_agreement
from bluecomm.runtime import Communicator

_SYNC = "elastic.sync"


class Door(Protocol):
    """Lets newcomers in at the checks of a state."""

    def check(self) -> bool:
        """Count a check; return whether newcomers have joined at it."""


class HostsUpdatedInterrupt(RuntimeError):
    """The ranks that train together have changed; ``run`` calls its function again.

    A state raises it at the same commit on all ranks, and undoes nothing.

    Args:
        skip_sync: Whether the ranks' states need no ``sync``, as after losses.
    """

    def __init__(self, skip_sync: bool = False) -> None:
        super().__init__(
            "the ranks that train together have changed; call the training function "
            "through bluecomm.elastic.run, which goes on with those that are left"
        )
        self.skip_sync = skip_sync


class State(abc.ABC):
    """The state of a training, as ``run`` uses it; subclasses define its parts."""

    def __init__(self) -> None:
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._agreement: Agreement | None = None
        self._door: Door | None = None
        self._checks = 0
        self._commits = 0

    @property
    def commits(self) -> int:
        """Number of commits, also of those before a restart."""
        return self._commits

    @property
    def begun_checks(self) -> int:
        """Number of checks that this rank has begun."""
        return self._checks

    def use_door(self, door: Door | None) -> None:
        """Let ``door`` let newcomers in at each check; with None, let no more in."""
        self._door = door

    def begin_check(self) -> int:
        """Count a check, and return its number."""
        self._checks += 1
        return self._checks

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Have functions called after each change of the ranks that train together."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Adapt to the ranks that train together, and call the reset callbacks."""
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def commit(self) -> None:
        """Save the state, then do what ``check_host_updates`` does.

        Raises:
            HostsUpdatedInterrupt: As in ``check_host_updates``.
        """
        self._commits += 1
        try:
            self.save()
        except BaseException:
            self._commits -= 1
            raise
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Raise if the ranks that train together change at this call.

        All ranks must call it equally often. It communicates only after a loss,
        and when a rank joins.

        Raises:
            HostsUpdatedInterrupt: A rank has been lost, has finished, or has joined.
                All ranks that take part raise it in the same call.
        """
        if not survives_losses():
            return
        if self._agreement is None or not self._agreement.is_current:
            self._agreement = Agreement()
        if self._door is None:
            self.begin_check()
        elif self._door.check():
            raise HostsUpdatedInterrupt(skip_sync=True)
        left = self._agreement.begin(self._checks)
        if left is not None and use_group(left):
            raise HostsUpdatedInterrupt(skip_sync=True)

    def reset(self) -> None:  # noqa: B027
        """Adapt to the ranks that train together. Does nothing by default."""

    def on_finish(self) -> None:  # noqa: B027
        """Called by ``run`` after its function. Does nothing by default."""

    @abc.abstractmethod
    def save(self) -> None:
        """Save the state in memory."""

    @abc.abstractmethod
    def restore(self) -> None:
        """Go back to the state that was saved last."""

    @abc.abstractmethod
    def sync(self) -> None:
        """Give all ranks the state of one of them."""


class ObjectState(State):
    """A state of Python objects, which are its attributes.

    Args:
        **attributes: Names and first values of the attributes.

    Raises:
        ValueError: A name is that of a method.
        TypeError: A value cannot be copied.
    """

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self._names = tuple(attributes)
        self._saved: dict[str, Any] = {}
        for name, value in attributes.items():
            self._add(name, value)
        self.save()

    if TYPE_CHECKING:
        # The attributes are known only when a state is made.
        def __getattr__(self, name: str) -> Any: ...

        def __setattr__(self, name: str, value: Any) -> None: ...

    @property
    def _kind(self) -> str:
        return type(self).__name__

    def save(self) -> None:
        """Save the attributes in memory.

        Raises:
            TypeError: A value cannot be copied.
        """
        self._saved = self._copy(self._saved)

    def restore(self) -> None:
        """Set the attributes to the values that were saved last."""
        for name, value in snapshot(self._saved).items():
            setattr(self, name, value)

    def sync(self) -> None:
        """Give all ranks the state of the rank with the newest commit.

        Collective. If several have it, the lowest rank counts.

        Raises:
            MismatchError: The ranks' states have different attributes.
            TypeError: A value cannot be pickled. The other ranks raise MismatchError.
            BluecommError: The communication failed.
        """
        group = current_group()
        with refusing(group, _SYNC, None, FIRST_OPERATION):
            self._pickled()
        name = group.name_for(_SYNC, None)
        remedy = "Make the state with the same attributes on all ranks"
        check_agreement(group, f"{self._kind}.sync", self._facts(), remedy, name=name)
        root = self._newest(group, name)
        self.prepare_sync(group, root, name)
        self.sync_parts(group, root, name)
        pickled = self._pickled()
        self._unpickle(
            broadcast_object(pickled, root, f"{name}.attributes", process_set=group)
        )
        self.save()

    def hand_over(
        self, group: Communicator, donor: int, name: str, *, keeps: bool = False
    ) -> None:
        """Give newcomers the state of the donor.

        Collective among the donor and the newcomers.

        Args:
            group: The donor and the newcomers.
            donor: Number of the donor in the world.
            name: Prefix of the operations' names, the same on all of them.
            keeps: Whether this newcomer keeps its own models, as it has trained apart
                from the donor.

        Raises:
            MismatchError: The newcomer's state has other attributes.
            BluecommError: The communication failed.
        """
        remedy = "Start newcomers with the script that the other ranks run"
        operation = f"{self._kind}.hand_over"
        check_agreement(group, operation, self._facts(), remedy, name=name)
        self.hand_over_parts(group, donor, name, keeps)
        is_donor = group.world.rank == donor
        mine = (self._commits, self._checks, self._pickled() if is_donor else {})
        self._commits, self._checks, pickled = broadcast_object(
            mine, donor, f"{name}.attributes", process_set=group
        )
        if not is_donor:
            self._unpickle(pickled)
            self.save()

    def newest_commit(self) -> int:
        """Return the number of the newest commit that this rank can provide."""
        return self._commits

    def prepare_sync(self, group: Communicator, root: int, name: str) -> None:
        """Have the root go to the newest commit that it can provide. Collective."""

    def sync_parts(self, group: Communicator, root: int, name: str) -> None:
        """Give all ranks of a group the root's parts that are not plain attributes."""

    def hand_over_parts(
        self, group: Communicator, donor: int, name: str, keeps: bool
    ) -> None:
        """Give newcomers the donor's parts; one that keeps its own takes the rest."""
        self.sync_parts(group, donor, name)

    def _newest(self, group: Communicator, name: str) -> int:
        """Return the rank with the newest commit, and take over the numbers."""
        mine = (self.newest_commit(), self._checks)
        gathered = allgather_object(mine, f"{name}.newest", process_set=group)
        self._commits = max(commits for commits, _ in gathered)
        # The numbers of checks must not fall, since agreements refer to them.
        self._checks = max(checks for _, checks in gathered)
        members = range(group.size)
        newest = next(m for m in members if gathered[m][0] == self._commits)
        return group.ranks[newest]

    def _add(self, name: str, value: Any) -> None:
        if hasattr(type(self), name) or name.startswith("_"):
            raise ValueError(
                f"{self._kind}: {name!r} cannot be an attribute, because the class has "
                "that name already, or it begins with an underscore; choose another"
            )
        setattr(self, name, value)

    def _facts(self) -> dict[str, str]:
        """Return the facts that must be equal on all ranks, in words."""
        return {f"attribute {name!r}": "present" for name in self._names}

    def _copy(self, memory: dict[str, Any]) -> dict[str, Any]:
        copies = {}
        for name in self._names:
            try:
                copies[name] = snapshot(getattr(self, name), memory.get(name))
            except Exception as error:
                raise self._unusable(name, "copied", error) from error
        return copies

    def _pickled(self) -> dict[str, bytes]:
        pickles = {}
        for name in self._names:
            try:
                pickles[name] = pickle.dumps(getattr(self, name))
            except Exception as error:
                raise self._unusable(name, "pickled", error) from error
        return pickles

    def _unpickle(self, pickles: dict[str, bytes]) -> None:
        for name, value in pickles.items():
            setattr(self, name, pickle.loads(value))

    def _unusable(self, name: str, what: str, error: Exception) -> TypeError:
        value = type(getattr(self, name)).__name__
        return TypeError(
            f"{self._kind} on rank {current_group().world.rank}: attribute {name!r} "
            f"({value}) cannot be {what}: {error}; keep it outside of the state"
        )
