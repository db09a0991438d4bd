"""``bfrun`` that never grows impatient: whoever survives a failure may say all it has.

How long the graces are is for tests of ``bfrun.driver.shutdown``, which have a clock
of their own.
"""

import sys

from bfrun.cli import main
from bfrun.driver import shutdown

if __name__ == "__main__":
    shutdown.GRACE_S = shutdown.TERM_S = shutdown.USER_TERM_S = 300.0
    shutdown._ALL_S = 600.0
    sys.exit(main())
