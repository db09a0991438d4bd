"""``ibfrun``: ranks that wait for a notebook's cells instead of running a program.

Needs ipyparallel, and nothing here imports it before it is used.
"""

from __future__ import annotations

from bfrun.notebook.interrupt import interrupt_hanged_processes

__all__ = ["interrupt_hanged_processes"]
