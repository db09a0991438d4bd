"""PMIx, by libpmix, from minimal declarations of our own."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from typing import Any

from bluecomm.errors import BluecommError
from bluecomm.runtime.process_manager import ProcessManager

# Of pmix_common.h; a test compares them with the header.
PMIX_SUCCESS = 0
PMIX_GLOBAL = 3
PMIX_BOOL = 1
PMIX_STRING = 3
VALUE_NBYTES = 32
VALUE_DATA_OFFSET = 8
INFO_NBYTES = 552
INFO_VALUE_OFFSET = 520


class PmixProc(ctypes.Structure):
    """``pmix_proc_t``."""

    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class PmixValue(ctypes.Structure):
    """``pmix_value_t`` that holds a string."""

    _fields_ = (
        ("type", ctypes.c_uint16),
        ("string", ctypes.c_char_p),
        ("rest", ctypes.c_char * (VALUE_NBYTES - VALUE_DATA_OFFSET - 8)),
    )


class Pmix(ProcessManager):
    """PMIx, by libpmix, which is not linked but found at run time.

    Args:
        rank: This rank.

    Raises:
        BluecommError: There is no libpmix, or it refuses.
    """

    name = "PMIx"
    remedy = (
        "does the library fit the process manager? Start with bfrun to need neither"
    )

    def __init__(self, rank: int) -> None:
        super().__init__(rank)
        self._library = _load_pmix()
        self._me = PmixProc()
        self._check("PMIx_Init", ctypes.byref(self._me), None, ctypes.c_size_t(0))

    def put(self, key: str, value: str) -> None:
        packed = PmixValue(PMIX_STRING, value.encode("ascii"))
        scope = ctypes.c_uint8(PMIX_GLOBAL)
        self._check("PMIx_Put", scope, key.encode("ascii"), ctypes.byref(packed))

    def fence(self, timeout_s: float) -> None:
        self._check("PMIx_Commit")
        collect = bytearray(INFO_NBYTES)
        collect[:12] = b"pmix.collect"
        collect[INFO_VALUE_OFFSET] = PMIX_BOOL
        collect[INFO_VALUE_OFFSET + VALUE_DATA_OFFSET] = 1
        info = ctypes.create_string_buffer(bytes(collect), INFO_NBYTES)
        failed: list[Exception] = []

        def wait() -> None:
            one, none = ctypes.c_size_t(1), ctypes.c_size_t(0)
            try:
                self._check("PMIx_Fence", None, none, ctypes.byref(info), one)
            except BluecommError as error:
                failed.append(error)

        # It has no deadline of its own, so it may be left behind waiting.
        thread = threading.Thread(target=wait, name="bluecomm-pmix", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            raise self._too_late(timeout_s)
        if failed:
            raise failed[0]

    def get(self, rank: int, key: str) -> str:
        whose = PmixProc(self._me.nspace, rank)
        found = ctypes.POINTER(PmixValue)()
        self._check(
            "PMIx_Get",
            ctypes.byref(whose),
            key.encode("ascii"),
            None,
            ctypes.c_size_t(0),
            ctypes.byref(found),
        )
        value = found.contents.string
        if found.contents.type != PMIX_STRING or value is None:
            raise self._failed(f"PMIx_Get of '{key}' gives no text")
        return bytes(value).decode("ascii")

    def close(self) -> None:
        self._library.PMIx_Finalize(None, ctypes.c_size_t(0))

    def _check(self, function: str, *arguments: Any) -> None:
        code = getattr(self._library, function)(*arguments)
        if code != PMIX_SUCCESS:
            raise self._failed(f"{function} failed with code {code}")


def _load_pmix() -> ctypes.CDLL:
    tried = ["libpmix.so.2", os.path.join(sys.prefix, "lib", "libpmix.so.2")]
    reasons = []
    for name in tried:
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            reasons.append(str(error))
    raise BluecommError(
        "init: PMIX_RANK says that a PMIx process manager started this process, but "
        f"there is no libpmix.so.2 ({'; '.join(reasons)}); install it (Debian: "
        "libpmix2), or start with srun --mpi=pmi2 or bfrun",
        operation="init",
    )
