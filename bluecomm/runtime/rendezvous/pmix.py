"""PMIx through libpmix, with minimal declarations of our own."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from typing import Any

from bluecomm.errors import BluecommError, CommunicationTimeout
from bluecomm.runtime.rendezvous.process_manager import ProcessManager

# From pmix_common.h; a test compares them with the header.
PMIX_SUCCESS = 0
PMIX_GLOBAL = 3
PMIX_BOOL = 1
PMIX_STRING = 3
VALUE_NBYTES = 32
VALUE_DATA_OFFSET = 8
INFO_NBYTES = 552
INFO_VALUE_OFFSET = 520

_FAREWELL_S = 5.0


class PmixProc(ctypes.Structure):
    """``pmix_proc_t``."""

    _fields_ = (("nspace", ctypes.c_char * 256), ("rank", ctypes.c_uint32))


class PmixValue(ctypes.Structure):
    """``pmix_value_t`` with a string."""

    _fields_ = (
        ("type", ctypes.c_uint16),
        ("string", ctypes.c_char_p),
        ("rest", ctypes.c_char * (VALUE_NBYTES - VALUE_DATA_OFFSET - 8)),
    )


class Pmix(ProcessManager):
    """Speaks PMIx through libpmix, which is found at run time.

    Args:
        rank: This rank.
        timeout_s: Deadline of an answer, in seconds.

    Raises:
        BluecommError: libpmix does not exist, or refuses.
        CommunicationTimeout: The process manager does not answer in time.
    """

    name = "PMIx"
    remedy = "does the library fit the process manager? bfrun needs neither"

    def __init__(self, rank: int, timeout_s: float) -> None:
        super().__init__(rank)
        self._timeout_s = timeout_s
        self._library = _load_pmix()
        self._me = PmixProc()
        none = ctypes.c_size_t(0)
        self._ask("PMIx_Init", ctypes.byref(self._me), None, none)

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
        one, none = ctypes.c_size_t(1), ctypes.c_size_t(0)
        arguments = (None, none, ctypes.byref(info), one)
        if not self._ends("PMIx_Fence", arguments, timeout_s):
            raise self._too_late(timeout_s)

    def get(self, rank: int, key: str) -> str:
        whose = PmixProc(self._me.nspace, rank)
        found = ctypes.POINTER(PmixValue)()
        self._ask(
            "PMIx_Get",
            ctypes.byref(whose),
            key.encode("ascii"),
            None,
            ctypes.c_size_t(0),
            ctypes.byref(found),
        )
        value = found.contents.string
        if found.contents.type != PMIX_STRING or value is None:
            raise self._failed(f"PMIx_Get of '{key}' returned no text")
        return bytes(value).decode("ascii")

    def close(self) -> None:
        with contextlib.suppress(BluecommError):  # the process manager need not know
            self._ends("PMIx_Finalize", (None, ctypes.c_size_t(0)), _FAREWELL_S)

    def _ask(self, function: str, *arguments: Any) -> None:
        if not self._ends(function, arguments, self._timeout_s):
            raise CommunicationTimeout(
                f"init on rank {self._rank}: {self.name}: {function} got no answer "
                f"from the process manager (slurmstepd) within {self._timeout_s:g} s; "
                "is it running? srun --mpi=pmi2 and bfrun need no PMIx",
                operation="init",
                rank=self._rank,
                timeout_s=self._timeout_s,
            )

    def _ends(
        self, function: str, arguments: tuple[Any, ...], timeout_s: float
    ) -> bool:
        """Call a function on another thread; return whether it ended in time.

        The functions of libpmix have no deadlines. A call that does not end in time
        keeps its daemon thread.

        Raises:
            BluecommError: The function failed.
        """
        failed: list[Exception] = []

        def call() -> None:
            try:
                self._check(function, *arguments)
            except Exception as error:
                failed.append(error)

        thread = threading.Thread(target=call, name="bluecomm-pmix", daemon=True)
        thread.start()
        thread.join(timeout_s)
        if thread.is_alive():
            return False
        if failed:
            raise failed[0]
        return True

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
        f"libpmix.so.2 cannot be loaded ({'; '.join(reasons)}); install it (Debian: "
        "libpmix2), or start with srun --mpi=pmi2 or bfrun",
        operation="init",
    )
