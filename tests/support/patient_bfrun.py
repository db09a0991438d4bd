"""``bfrun`` whose grace periods never end, so that survivors can report fully.

Tests of ``bfrun.driver.shutdown`` check the grace periods with their own clock.
"""

import sys

from bfrun.cli import main
from bfrun.driver import shutdown

if __name__ == "__main__":
    shutdown.EXIT_S = shutdown.GRACE_S = shutdown.TERM_S = shutdown.USER_TERM_S = 600.0
    shutdown._ALL_S = 1000.0
    sys.exit(main())
