"""Raises a clear error where Lightning is missing or too old."""

_LEAST = (2, 6)

_REMEDY = (
    f"install it: pip install 'lightning>={'.'.join(map(str, _LEAST))}'. The packages "
    "pytorch_lightning and lightning_fabric have classes of their own, which do not "
    "work with these strategies"
)

try:
    from lightning import __version__ as installed
except ImportError as error:
    raise ImportError(
        f"bluecomm.lightning needs the package lightning, which cannot be imported "
        f"({error}); {_REMEDY}"
    ) from error

if tuple(map(int, installed.split(".")[:2])) < _LEAST:
    raise ImportError(f"bluecomm.lightning cannot use lightning {installed}; {_REMEDY}")
