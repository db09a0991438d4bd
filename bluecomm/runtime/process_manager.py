"""Key-value exchange through the process manager that started the ranks.

Two protocols, both of MPI's world, neither of which needs an MPI: PMI-2, lines of text
over an inherited socket, and PMIx, a library.
"""

from __future__ import annotations

import abc
import base64
import ctypes
import os
import socket
import sys
import threading
import time
from typing import Any

from bluecomm.errors import BluecommError, CommunicationTimeout

# A value may have 1024 bytes with its end (PMI2_MAX_VALLEN).
_PART_NBYTES = 900


class ProcessManager(abc.ABC):
    """What a rank puts is what all ranks get once all have come to the fence."""

    name: str

    @abc.abstractmethod
    def put(self, key: str, value: str) -> None:
        """Publish an ASCII value of at most 900 bytes under this rank's ``key``."""

    @abc.abstractmethod
    def fence(self, timeout_s: float) -> None:
        """Wait until all ranks have come here.

        Raises:
            CommunicationTimeout: Some have not in time.
        """

    @abc.abstractmethod
    def get(self, rank: int, key: str) -> str:
        """Return what a rank has put before the last fence."""

    @abc.abstractmethod
    def close(self) -> None:
        """Tell the process manager that this rank needs it no more."""

    def put_text(self, key: str, text: str) -> None:
        """Publish a text of any length and any letters."""
        data = base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")
        parts = [
            data[start : start + _PART_NBYTES]
            for start in range(0, len(data), _PART_NBYTES)
        ]
        self.put(f"{key}.n", str(len(parts)))
        for index, part in enumerate(parts):
            self.put(f"{key}.{index}", part)

    def get_text(self, rank: int, key: str) -> str:
        """Return what a rank has put by ``put_text``."""
        count = int(self.get(rank, f"{key}.n"))
        data = "".join(self.get(rank, f"{key}.{index}") for index in range(count))
        return base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)).decode()


class Pmi2(ProcessManager):
    """PMI-2 over the socket that ``PMI_FD`` names.

    After one line in the style of PMI-1, a message is its length in six columns, then
    ``cmd=NAME;key=value;...;`` where a semicolon in a value is doubled (none of ours
    has one).

    Args:
        fd: The socket; stays open for other libraries of this process.
        rank: This rank.
        job: Name of the job, ``PMI_JOBID``.
        timeout_s: Seconds that an answer may take.

    Raises:
        BluecommError: The process manager refuses, or is gone.
    """

    name = "PMI-2"

    def __init__(self, fd: int, rank: int, job: str, timeout_s: float) -> None:
        self._rank = rank
        self._job = job
        self._timeout_s = timeout_s
        try:
            self._socket = socket.socket(fileno=os.dup(fd))
        except OSError as error:
            raise BluecommError(
                f"init: PMI_FD is {fd}, which is no open socket ({error.strerror}); "
                "start the script itself with srun, not a program that starts it",
                operation="init",
                rank=rank,
            ) from None
        try:
            self._agree_on_version()
            self._ask(
                "fullinit", timeout_s, pmijobid=job, pmirank=rank, threaded="FALSE"
            )
        except BaseException:
            self._socket.close()
            raise

    def put(self, key: str, value: str) -> None:
        self._ask("kvs-put", self._timeout_s, key=f"{key}@{self._rank}", value=value)

    def fence(self, timeout_s: float) -> None:
        self._ask("kvs-fence", timeout_s)

    def get(self, rank: int, key: str) -> str:
        whose = f"{key}@{rank}"
        answer = self._ask(
            "kvs-get", self._timeout_s, jobid=self._job, srcid=-1, key=whose
        )
        if answer.get("found") != "TRUE":
            raise self._failed(f"nothing under '{whose}'")
        return answer["value"]

    def close(self) -> None:
        try:
            self._ask("finalize", 1.0)
        except (BluecommError, OSError):
            pass  # it is gone, and all it would have noted is our end
        finally:
            self._socket.close()

    def _agree_on_version(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        line = ""
        try:
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(b"cmd=init pmi_version=2 pmi_subversion=0\n")
            while not line.endswith("\n"):
                line += self._receive(1, deadline).decode("ascii")
        except (OSError, ValueError) as error:
            raise self._failed(f"init: {error}") from None
        if "pmi_version=2 " not in line or "rc=0" not in line:
            raise self._failed(f"init was answered by '{line.strip()}'")

    def _ask(self, command: str, timeout_s: float, **values: object) -> dict[str, str]:
        text = f"cmd={command};" + "".join(f"{k}={v};" for k, v in values.items())
        deadline = time.monotonic() + timeout_s
        try:
            self._socket.settimeout(timeout_s)
            self._socket.sendall(f"{len(text):6d}{text}".encode("ascii"))
            length = int(self._receive(6, deadline))
            body = self._receive(length, deadline).decode("ascii")
        except TimeoutError:
            raise _too_late(self._rank, self.name, timeout_s) from None
        except (OSError, ValueError) as error:
            raise self._failed(f"{command}: {error}") from None
        answer = dict(
            part.split("=", 1) for part in body.rstrip(";").split(";") if "=" in part
        )
        if answer.get("cmd") != f"{command}-response" or answer.get("rc", "0") != "0":
            raise self._failed(f"{command} was answered by '{body}'")
        return answer

    def _receive(self, nbytes: int, deadline: float) -> bytes:
        data = b""
        while len(data) < nbytes:
            self._socket.settimeout(max(0.001, deadline - time.monotonic()))
            more = self._socket.recv(nbytes - len(data))
            if not more:
                raise OSError("the process manager hung up")
            data += more
        return data

    def _failed(self, what: str) -> BluecommError:
        return BluecommError(
            f"init on rank {self._rank}: PMI-2: {what}; start with srun --mpi=pmix, "
            "or with bfrun",
            operation="init",
            rank=self._rank,
        )


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

    def __init__(self, rank: int) -> None:
        self._rank = rank
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
            raise _too_late(self._rank, self.name, timeout_s)
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

    def _failed(self, what: str) -> BluecommError:
        return BluecommError(
            f"init on rank {self._rank}: {what}; does the library fit the process "
            "manager? Start with bfrun to need neither",
            operation="init",
            rank=self._rank,
        )


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


def _too_late(rank: int, name: str, timeout_s: float) -> CommunicationTimeout:
    return CommunicationTimeout(
        f"init on rank {rank}: not all ranks called bluecomm.init within "
        f"{timeout_s:g} s; {name} does not tell which",
        operation="init",
        rank=rank,
        timeout_s=timeout_s,
    )
