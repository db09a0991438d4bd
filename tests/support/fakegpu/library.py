"""Builds and loads the fake's libraries.

``load()`` puts both into the process under their real names, so that a later ``dlopen``
of ``libcuda.so.1`` or ``libnccl.so.2`` finds them.
"""

from __future__ import annotations

import ctypes
import fcntl
import functools
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
FOLDER = ROOT / "build" / "fakegpu"
_TARGETS = ("build/fakegpu/libnccl.so.2", "build/fakegpu/libnvidia-ml.so.1")
_TEXTS_BYTES = 1 << 16
# The counts of `fakegpu_live`.
_LIVE_IN_CUDA = (
    *("streams", "events", "tensors", "device memory", "pinned memory"),
    *("exported memory", "mapped memory", "contexts"),
)

handle = ctypes.c_void_p
address = ctypes.c_uint64
size = ctypes.c_size_t


class UniqueId(ctypes.Structure):
    """``ncclUniqueId``."""

    _fields_ = (("internal", ctypes.c_char * 128),)

    def __getstate__(self) -> bytes:
        return bytes(self)

    def __setstate__(self, state: bytes) -> None:
        ctypes.memmove(ctypes.addressof(self), state, len(state))


class IpcHandle(ctypes.Structure):
    """``CUipcMemHandle``."""

    _fields_ = (("reserved", ctypes.c_char * 64),)


class Config(ctypes.Structure):
    """``ncclConfig_t`` of NCCL 2.14."""

    _fields_ = (
        ("size", size),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", ctypes.c_int),
    )


class WaitDescription(ctypes.Structure):
    """``ncclWaitSignalDesc_t`` of NCCL 2.29.2."""

    _fields_ = (
        ("opCnt", ctypes.c_int),
        ("peer", ctypes.c_int),
        ("sigIdx", ctypes.c_int),
        ("ctx", ctypes.c_int),
    )


_CUDA_ARGUMENTS = {
    "cuMemAlloc_v2": (ctypes.POINTER(address), size),
    "cuMemFree_v2": (address,),
    "cuMemHostAlloc": (ctypes.POINTER(handle), size, ctypes.c_uint),
    "cuMemFreeHost": (handle,),
    "cuMemcpyDtoDAsync_v2": (address, address, size, handle),
    "cuMemcpyAsync": (address, address, size, handle),
    "cuMemcpyDtoHAsync_v2": (handle, address, size, handle),
    "cuMemcpyHtoDAsync_v2": (address, handle, size, handle),
    "cuMemsetD8Async": (address, ctypes.c_ubyte, size, handle),
    "cuPointerGetAttribute": (handle, ctypes.c_int, address),
    "cuIpcGetMemHandle": (handle, address),
    "cuIpcOpenMemHandle_v2": (ctypes.POINTER(address), IpcHandle, ctypes.c_uint),
    "cuIpcCloseMemHandle": (address,),
    "cuCtxSetCurrent": (handle,),
    "cuCtxPushCurrent_v2": (handle,),
    "cuStreamWaitEvent": (handle, handle, ctypes.c_uint),
    "cuStreamSynchronize": (handle,),
    "cuStreamQuery": (handle,),
    "cuStreamDestroy_v2": (handle,),
    "cuStreamIsCapturing": (handle, ctypes.POINTER(ctypes.c_int)),
    "cuEventRecord": (handle, handle),
    "cuEventQuery": (handle,),
    "cuEventSynchronize": (handle,),
    "cuEventDestroy_v2": (handle,),
    "cuEventElapsedTime": (ctypes.POINTER(ctypes.c_float), handle, handle),
    "cuLaunchHostFunc": (handle, handle, handle),
    "fakegpu_access": (handle, address, size, ctypes.c_int, ctypes.c_char_p),
    "fakegpu_host_access": (address, size, ctypes.c_int, ctypes.c_char_p),
    "fakegpu_write": (
        *(handle, address, size, handle, size, ctypes.c_int),
        *(ctypes.POINTER(ctypes.c_long), ctypes.POINTER(ctypes.c_long), size),
        ctypes.c_char_p,
    ),
    "fakegpu_free_on": (handle, address),
    "fakegpu_pool": (address,),
    "fakegpu_live": (ctypes.POINTER(ctypes.c_int),),
    "fakegpu_arena": (ctypes.POINTER(address),) * 3,
    "fakegpu_default_stream": (ctypes.c_int,),
    "fakegpu_drain": (handle,),
    "fakegpu_hold": (handle, ctypes.c_int),
    "fakegpu_limit_copies_to_host": (ctypes.c_int,),
    "fakegpu_set_capturing": (handle, ctypes.c_int),
    "fakegpu_break": (ctypes.c_int,),
    "fakegpu_site": (ctypes.c_char_p,),
}
_items = (size, ctypes.c_int)
_ends = (handle, handle)  # communicator and stream
_NCCL_ARGUMENTS = {
    "ncclCommInitRank": (handle, ctypes.c_int, UniqueId, ctypes.c_int),
    "ncclCommInitRankConfig": (handle, ctypes.c_int, UniqueId, ctypes.c_int, handle),
    "ncclCommGetAsyncError": (handle, ctypes.POINTER(ctypes.c_int)),
    "ncclCommAbort": (handle,),
    "ncclCommFinalize": (handle,),
    "ncclCommDestroy": (handle,),
    "ncclCommSplit": (handle, ctypes.c_int, ctypes.c_int, handle, handle),
    "ncclAllReduce": (handle, handle, *_items, ctypes.c_int, *_ends),
    "ncclReduce": (handle, handle, *_items, ctypes.c_int, ctypes.c_int, *_ends),
    "ncclBroadcast": (handle, handle, *_items, ctypes.c_int, *_ends),
    "ncclAllGather": (handle, handle, *_items, *_ends),
    "ncclReduceScatter": (handle, handle, *_items, ctypes.c_int, *_ends),
    "ncclSend": (handle, *_items, ctypes.c_int, *_ends),
    "ncclRecv": (handle, *_items, ctypes.c_int, *_ends),
    "ncclRedOpCreatePreMulSum": (
        *(ctypes.POINTER(ctypes.c_int), handle, ctypes.c_int, ctypes.c_int, handle),
    ),
    "ncclRedOpDestroy": (ctypes.c_int, handle),
    "ncclMemAlloc": (ctypes.POINTER(handle), size),
    "ncclMemFree": (handle,),
    "ncclCommWindowRegister": (handle, handle, size, handle, ctypes.c_int),
    "ncclCommWindowDeregister": (handle, handle),
    "ncclPutSignal": (
        *(handle, *_items, ctypes.c_int, handle, size),
        *(ctypes.c_int, ctypes.c_int, ctypes.c_uint, *_ends),
    ),
    "ncclSignal": (*(ctypes.c_int,) * 3, ctypes.c_uint, *_ends),
    "ncclWaitSignal": (ctypes.c_int, ctypes.POINTER(WaitDescription), *_ends),
}


class Libraries:
    """Both libraries, with the types of their functions."""

    def __init__(self) -> None:
        build()
        self.cuda = ctypes.CDLL(str(FOLDER / "libcuda.so.1"), ctypes.RTLD_GLOBAL)
        self.nccl = ctypes.CDLL(str(FOLDER / "libnccl.so.2"), ctypes.RTLD_GLOBAL)
        for name, arguments in _CUDA_ARGUMENTS.items():
            getattr(self.cuda, name).argtypes = arguments
        for name, arguments in _NCCL_ARGUMENTS.items():
            getattr(self.nccl, name).argtypes = arguments
        self.cuda.fakegpu_default_stream.restype = handle
        self.nccl.ncclGetLastError.argtypes = (handle,)
        self.nccl.ncclGetLastError.restype = ctypes.c_char_p

    def reset(self) -> None:
        """Read the environment again, and forget violations and counted calls."""
        self.cuda.fakegpu_reset()

    def live(self) -> dict[str, int]:
        """Return how much of each kind this process has not given back."""
        counts = (ctypes.c_int * len(_LIVE_IN_CUDA))()
        self.cuda.fakegpu_live(counts)
        live = dict(zip(_LIVE_IN_CUDA, counts, strict=True))
        return {**live, "communicators": self.nccl.fakegpu_live_comms()}

    def violations(self) -> list[str]:
        """Return what was done wrong since the last reset."""
        self.cuda.fakegpu_violations()  # also checks memory that was freed
        texts = ctypes.create_string_buffer(_TEXTS_BYTES)
        self.cuda.fakegpu_violation_texts(texts, _TEXTS_BYTES)
        return texts.value.decode().splitlines()


def build() -> None:
    """Compile what has changed. Safe to call in several processes at once."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        subprocess.run(
            ["make", "-s", f"VENV={sys.prefix}", *_TARGETS],
            cwd=ROOT,
            check=True,
            stdout=subprocess.DEVNULL,
        )


@functools.cache
def load() -> Libraries:
    """Load the libraries into this process; once."""
    return Libraries()


def reset_loaded() -> None:
    """Let the libraries read the environment again, if this process has loaded them."""
    if load.cache_info().currsize:
        load().reset()
