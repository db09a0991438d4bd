"""The former name of ``bluecomm.nccl_net``, for scripts that use it."""

import sys

from bluecomm.nccl_net import *
from bluecomm.nccl_net import __all__ as __all__
from bluecomm.nccl_net.__main__ import main

if __name__ == "__main__":
    sys.exit(main())
