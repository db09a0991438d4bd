"""``python -m bfrun.notebook``: the same as ``ibfrun``."""

from __future__ import annotations

import sys

from bfrun.notebook.cli import main

if __name__ == "__main__":
    sys.exit(main())
