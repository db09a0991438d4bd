"""Prints the table of all control frames, for docs/control-plane.md."""

from __future__ import annotations

from collections.abc import Iterator

from bfrun.frames.agent_to_driver import AGENT_TO_DRIVER
from bfrun.frames.agent_to_rank import AGENT_TO_RANK
from bfrun.frames.driver_to_agent import DRIVER_TO_AGENT
from bfrun.frames.driver_to_rank import DRIVER_TO_RANK
from bfrun.frames.frame import Frame, Route
from bfrun.frames.rank_to_agent import RANK_TO_AGENT
from bfrun.frames.rank_to_driver import RANK_TO_DRIVER

ROUTES = (
    *(DRIVER_TO_AGENT, AGENT_TO_DRIVER),
    *(RANK_TO_AGENT, AGENT_TO_RANK),
    *(RANK_TO_DRIVER, DRIVER_TO_RANK),
)


def table() -> Iterator[str]:
    """Return the lines of a Markdown table of all frames."""
    yield "| frame | from, to | fields | meaning |"
    yield "|---|---|---|---|"
    routes: dict[type[Frame], list[Route]] = {}
    for route in ROUTES:
        for frame in route.frames.values():
            routes.setdefault(frame, []).append(route)
    for frame, ways in routes.items():
        parties = "; ".join(f"{way.sender}, {way.receiver}" for way in ways)
        fields = ", ".join(f"`{name}`" for name in frame.fields()) or "-"
        meaning = " ".join((frame.__doc__ or "").split()).replace("``", "`")
        yield f"| `{frame.kind}` | {parties} | {fields} | {meaning} |"


if __name__ == "__main__":
    print("\n".join(table()))
