"""``python -m bfrun``: the same as ``bfrun``."""

from __future__ import annotations

import sys

from bfrun.cli import main

if __name__ == "__main__":
    sys.exit(main())
