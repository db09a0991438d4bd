"""What a rank does, for a timeline of all ranks; see docs/timeline.md.

``python -m bluecomm.timeline`` reads one.
"""

from bluecomm.timeline.activities import (
    timeline_context,
    timeline_end_activity,
    timeline_start_activity,
)

__all__ = ["timeline_context", "timeline_end_activity", "timeline_start_activity"]
