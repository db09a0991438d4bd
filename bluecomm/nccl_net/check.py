"""Find out which NCCL is installed, and which network interfaces it will use."""

from __future__ import annotations

import ctypes
import importlib.util
from dataclasses import dataclass
from pathlib import Path

# For each version of the plugin interface the first NCCL that uses it, newest first.
_INTERFACES = (
    ((2, 30), 12),
    ((2, 28), 11),
    ((2, 26), 10),
    ((2, 24), 9),
    ((2, 20), 8),
    ((2, 19), 7),
    ((2, 13), 6),
)
# Earlier versions take the name of a library, which the dynamic loader looks up.
_FIRST_WITH_PATH = (2, 21)
_DEFAULT_LIBRARY = "libnccl.so.2"
_WARNING = 2  # log level


@dataclass(frozen=True)
class Card:
    """A network interface that NCCL may use through the plugin."""

    name: str
    speed_mbps: int
    pci_path: str


class _Properties(ctypes.Structure):
    """Device properties of version 6 of the interface; other versions list the same."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("pci_path", ctypes.c_char_p),
        ("guid", ctypes.c_uint64),
        ("ptr_support", ctypes.c_int),
        ("speed", ctypes.c_int),
        ("port", ctypes.c_int),
        ("latency", ctypes.c_float),
        ("max_comms", ctypes.c_int),
        ("max_recvs", ctypes.c_int),
    )


_INT = ctypes.POINTER(ctypes.c_int)
_LOGGER = ctypes.CFUNCTYPE(
    None,
    ctypes.c_int,
    ctypes.c_ulong,
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_char_p,
)


class _Functions(ctypes.Structure):
    """The first functions of version 6 of the interface."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("init", ctypes.CFUNCTYPE(ctypes.c_int, _LOGGER)),
        ("devices", ctypes.CFUNCTYPE(ctypes.c_int, _INT)),
        (
            "properties",
            ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.POINTER(_Properties)),
        ),
    )


def find_cards(plugin: Path) -> list[Card]:
    """Return the network interfaces that the plugin finds.

    Raises:
        RuntimeError: The plugin cannot be used here. The text says why.
    """
    functions = _Functions.in_dll(ctypes.CDLL(str(plugin)), "ncclNetPlugin_v6")
    warnings: list[str] = []

    def log(
        level: int, _f: int, _file: bytes, _l: int, _format: bytes, text: bytes
    ) -> None:
        # The plugin logs with a single format, "...%s".
        if level == _WARNING:
            warnings.append(text.decode(errors="replace"))

    logger = _LOGGER(log)
    started = functions.init(logger) == 0
    # The plugin must not call the logger after this function has returned.
    functions.init(_LOGGER())
    if not started:
        raise RuntimeError("; ".join(warnings) or "the plugin does not start")
    count = ctypes.c_int()
    functions.devices(ctypes.byref(count))
    cards = []
    for number in range(count.value):
        got = _Properties()
        functions.properties(number, ctypes.byref(got))
        path = (got.pci_path or b"").decode()
        cards.append(Card(got.name.decode(), got.speed, path))
    return cards


def find_nccl() -> tuple[int, ...] | None:
    """Return the version of the NCCL that torch would load, or None without one."""
    for library in (_beside_torch(), _DEFAULT_LIBRARY):
        if library is None:
            continue
        code = ctypes.c_int()
        try:
            failed = ctypes.CDLL(library).ncclGetVersion(ctypes.byref(code))
        except (OSError, AttributeError):
            continue
        if failed:
            continue
        # NCCL encoded its version differently before 2.9.
        major = 10000 if code.value >= 10000 else 1000
        return code.value // major, code.value % major // 100, code.value % 100
    return None


def _beside_torch() -> str | None:
    """Return the library of the package nvidia-nccl, on which torch's wheels depend."""
    try:
        spec = importlib.util.find_spec("nvidia.nccl")
    except ModuleNotFoundError:
        return None
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        path = Path(folder) / "lib" / _DEFAULT_LIBRARY
        if path.is_file():
            return str(path)
    return None


def interface_of(nccl: tuple[int, ...]) -> int | None:
    """Return the version of the plugin interface that an NCCL uses, or None."""
    for first, interface in _INTERFACES:
        if nccl[:2] >= first:
            return interface
    return None


def describe_nccl(plugin: Path) -> str:
    """Describe the NCCL that is found, and how it will load the plugin."""
    nccl = find_nccl()
    if nccl is None:
        return "none found"
    version = ".".join(map(str, nccl))
    interface = interface_of(nccl)
    if interface is None:
        return f"{version}, too old: it loads no version of the interface"
    text = f"{version}, loads version {interface} of the interface"
    if nccl >= _FIRST_WITH_PATH:
        return text
    return (
        f"{text}; needs NCCL_NET_PLUGIN=bluecomm and {plugin.parent} in LD_LIBRARY_PATH"
    )
