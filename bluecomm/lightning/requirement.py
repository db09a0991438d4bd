"""Raises a clear error where Lightning is missing or too old."""

from bluecomm.required_package import require_package

require_package(
    "lightning",
    "2.6",
    __package__,
    ". The packages pytorch_lightning and lightning_fabric have classes of their own, "
    "which do not work with these strategies",
)
