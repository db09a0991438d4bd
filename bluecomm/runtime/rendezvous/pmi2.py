"""PMI-2: a line protocol with the process manager over an inherited socket."""

from __future__ import annotations

import os
import socket
import time

from bluecomm.errors import BluecommError
from bluecomm.runtime.rendezvous.process_manager import ProcessManager


class Pmi2(ProcessManager):
    """Speaks PMI-2 over the socket that ``PMI_FD`` names.

    After one line in the style of PMI-1, a message is its length in six columns, then
    ``cmd=NAME;key=value;...;``. Semicolons in values would be doubled, but no value of
    bluecomm has one.

    Args:
        fd: The socket. It is duplicated, and stays open for other libraries.
        rank: This rank.
        job: Name of the job, ``PMI_JOBID``.
        timeout_s: Deadline of an answer, in seconds.

    Raises:
        BluecommError: The process manager refuses, or the connection is lost.
    """

    name = "PMI-2"
    remedy = "start with srun --mpi=pmix, or with bfrun"

    def __init__(self, fd: int, rank: int, job: str, timeout_s: float) -> None:
        super().__init__(rank)
        self._job = job
        self._timeout_s = timeout_s
        try:
            self._socket = socket.socket(fileno=os.dup(fd))
        except OSError as error:
            raise BluecommError(
                f"init: PMI_FD is {fd}, which is not an open socket "
                f"({error.strerror}); "
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
            raise self._failed(f"no value exists under '{whose}'")
        return answer["value"]

    def close(self) -> None:
        try:
            self._ask("finalize", 1.0)
        except (BluecommError, OSError):
            pass  # the process manager has ended already
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
            raise self._too_late(timeout_s) from None
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
                raise OSError("the process manager closed the connection")
            data += more
        return data
