"""Control frames and their routes, and the one place that refuses invalid frames.

Part of the agent: standard library only, Python 3.8.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bfrun.errors import ProtocolError
from bfrun.structure import FieldError, Structure

_ARTICLE = {"driver": "the driver", "agent": "an agent", "rank": "a rank"}


class Route:
    """The way of frames from a sender to a receiver: driver, agent or rank.

    Args:
        sender: The sender.
        receiver: The receiver.
        *frames: Frames that belong to another route, too.

    Attributes:
        frames: The classes of its frames, by kind.
    """

    def __init__(self, sender: str, receiver: str, *frames: type[Frame]) -> None:
        self.sender = sender
        self.receiver = receiver
        self.frames: dict[str, type[Frame]] = {frame.kind: frame for frame in frames}

    def __repr__(self) -> str:
        return f"Route({self.sender!r}, {self.receiver!r})"


class Frame(Structure):
    """Base of all frames. ``kind`` is the value of the key "type"."""

    kind = ""

    def __init_subclass__(cls, kind: str, route: Route) -> None:
        super().__init_subclass__()
        cls.kind = kind
        route.frames[kind] = cls

    def to_message(self) -> dict[str, Any]:
        """Return the frame as a JSON object."""
        return {"type": self.kind, **self.to_json()}


def decode(message: Mapping[str, Any], sender: str, *routes: Route) -> Frame:
    """Return the frame in a JSON object, ignoring unknown fields.

    Args:
        message: The object, which has text under "type".
        sender: Name of the sender for errors, such as ``the agent on node1``.
        routes: Routes whose frames the caller accepts.

    Raises:
        ProtocolError: No frame of these routes has this type, or a field is missing or
            has the wrong type.
    """
    kind = message["type"]
    for route in routes:
        frame = route.frames.get(kind)
        if frame is not None:
            try:
                return frame.from_json(message)
            except FieldError as error:
                raise _refusal(f"{sender} sent an invalid '{kind}': {error}") from None
    senders = " or ".join(_ARTICLE[route.sender] for route in routes)
    receiver = _ARTICLE[routes[0].receiver]
    raise _refusal(
        f"{sender} sent the frame '{kind[:99]}', which {senders} never sends to "
        f"{receiver}"
    )


def _refusal(what: str) -> ProtocolError:
    return ProtocolError(
        f"{what}; install one version of bluecomm and bfrun on all hosts"
    )
