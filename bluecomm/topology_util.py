"""BlueFog's module name for the topology functions of ``bluecomm.compat``."""

from bluecomm.compat.topology_util import *
from bluecomm.compat.topology_util import __all__ as __all__
