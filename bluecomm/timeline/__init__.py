"""Timelines of all ranks: the user's own activities, and reading a timeline.

docs/timeline.md describes them. ``python -m bluecomm.timeline`` reads one.
"""

from bluecomm.timeline.activities import (
    timeline_context,
    timeline_end_activity,
    timeline_start_activity,
)
from bluecomm.timeline.excerpt import start_timeline, stop_timeline

__all__ = [
    "start_timeline",
    "stop_timeline",
    "timeline_context",
    "timeline_end_activity",
    "timeline_start_activity",
]
