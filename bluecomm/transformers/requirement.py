"""Raises a clear error where Transformers or Accelerate is missing or too old."""

from bluecomm.required_package import require_package

require_package("transformers", "5.23", __package__)
# The Trainer needs it, but the package Transformers does not.
require_package("accelerate", "1.15", __package__)
