"""The end of ranks whose errors a test reads."""

import sys
from collections.abc import Iterable
from pathlib import Path

from tests.support.deadlines import hear, say


def exit_together(code: int, rank: int, ranks: Iterable[int]) -> None:
    """End this process once all of these ranks have come so far.

    Otherwise the end of the first one may be the error that a slower one gets.

    Args:
        code: The exit code.
        rank: This rank.
        ranks: All ranks that call this.
    """
    say(Path(), f"{rank} is done")
    for each in ranks:
        hear(Path(), f"{each} is done")
    sys.exit(code)
