"""All public names of ``bluecomm``, under the module name of BlueFog.

``import bluecomm.torch as bf`` replaces ``import bluefog.torch as bf``.
"""

import typing

import bluecomm
from bluecomm import *
from bluecomm import __version__ as __version__
from bluecomm import data as data
from bluecomm import elastic as elastic
from bluecomm import topology as topology
from bluecomm import topology_util as topology_util

if not typing.TYPE_CHECKING:
    __all__ = bluecomm.__all__

    def __dir__() -> list[str]:
        """Return the public names only, for shells that complete names."""
        return __all__
