"""Python imports this file only if the compiled module of the same name is missing."""

from bluecomm.missing_extension import missing_extension

raise missing_extension(__name__, __file__)
