"""``ibfrun``: ranks that wait for the cells of a notebook.

It needs ipyparallel, which is imported only on use.
"""

from __future__ import annotations

from bfrun.notebook.interrupt import interrupt_hanged_processes

__all__ = ["interrupt_hanged_processes"]
