"""PMI-2 on the wire, and the declarations of PMIx against the real header."""

import os
import shutil
import socket
import subprocess
import threading
from pathlib import Path

import pytest

from bluecomm.errors import BluecommError, CommunicationTimeout
from bluecomm.runtime.rendezvous import pmix
from bluecomm.runtime.rendezvous.pmi2 import Pmi2
from bluecomm.runtime.rendezvous.pmix import Pmix
from bluecomm.runtime.rendezvous.slurm import is_in_step
from tests.support.deadlines import DEADLINE_S
from tests.support.stand_in import replace_in

HEADERS = Path("/usr/lib/x86_64-linux-gnu/pmix2/include")


INIT = b"cmd=response_to_init pmi_version=2 pmi_subversion=0 rc=0\n"


class Server:
    """Answers the PMI-2 commands of one client with prepared replies."""

    def __init__(self, answers=None):
        self.near, self.far = socket.socketpair()
        self.asked = []
        self.values = {}
        self._answers = answers or {}
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()

    def _serve(self):
        with self.far.makefile("r") as lines:
            assert lines.readline() == "cmd=init pmi_version=2 pmi_subversion=0\n"
        self.far.sendall(self._answers.get("init", INIT))
        while header := self.far.recv(6):
            text = self.far.recv(int(header)).decode()
            self.asked.append(text)
            said = dict(part.split("=", 1) for part in text.strip(";").split(";"))
            command = said["cmd"]
            answer = f"cmd={command}-response;rc=0;"
            if command == "kvs-put":
                self.values[said["key"]] = said["value"]
            elif command == "kvs-get":
                value = self.values.get(said["key"])
                found = "FALSE" if value is None else "TRUE"
                answer += f"found={found};value={value};"
            answer = self._answers.get(command, answer)
            if answer is not None:
                self.far.sendall(f"{len(answer):6d}{answer}".encode())

    def close(self):
        self.near.close()
        self._thread.join(DEADLINE_S)
        self.far.close()


@pytest.fixture
def make_server():
    servers = []

    def make(answers=None):
        servers.append(Server(answers))
        return servers[-1]

    yield make
    for server in servers:
        server.close()


def test_any_text_is_returned_unchanged(make_server):
    server = make_server()
    manager = Pmi2(server.near.fileno(), 3, "7.0", DEADLINE_S)
    text = '{"a": "x;=\\n\u00e9"}' * 200
    manager.put_text("k", text)
    manager.fence(DEADLINE_S)
    assert manager.get_text(3, "k") == text
    manager.close()
    assert server.asked[0] == "cmd=fullinit;pmijobid=7.0;pmirank=3;threaded=FALSE;"
    assert server.asked[-1] == "cmd=finalize;"
    assert max(map(len, server.values.values())) <= 1000


def test_a_missing_key_is_an_error(make_server):
    manager = Pmi2(make_server().near.fileno(), 0, "j", DEADLINE_S)
    with pytest.raises(BluecommError, match=r"PMI-2: no value exists under 'x\.n@1'"):
        manager.get_text(1, "x")
    manager.close()


def test_a_refusal_is_an_error(make_server):
    server = make_server({"fullinit": "cmd=fullinit-response;rc=14;"})
    with pytest.raises(BluecommError, match=r"fullinit was answered by .*rc=14"):
        Pmi2(server.near.fileno(), 0, "j", DEADLINE_S)
    server = make_server({"init": INIT.replace(b"version=2", b"version=1")})
    with pytest.raises(BluecommError, match=r"init was answered by .*pmi_version=1"):
        Pmi2(server.near.fileno(), 0, "j", DEADLINE_S)


def test_a_fence_that_others_do_not_reach_ends(make_server):
    manager = Pmi2(make_server({"kvs-fence": None}).near.fileno(), 0, "j", DEADLINE_S)
    with pytest.raises(CommunicationTimeout, match=r"not all ranks .* within 0.1 s"):
        manager.fence(0.1)
    manager.close()


def test_a_process_manager_that_hangs_up(make_server):
    server = make_server()
    manager = Pmi2(server.near.fileno(), 0, "j", DEADLINE_S)
    server.far.shutdown(socket.SHUT_RDWR)
    with pytest.raises(BluecommError, match="PMI-2: kvs-fence"):
        manager.fence(1.0)
    manager.close()


def test_a_descriptor_that_was_not_inherited_is_named():
    with pytest.raises(
        BluecommError, match="PMI_FD is 987, which is not an open socket"
    ):
        Pmi2(987, 0, "j", DEADLINE_S)


def test_a_missing_libpmix_is_named(monkeypatch):
    def fail(name):
        raise OSError(f"{name}: not there")

    replace_in(monkeypatch, pmix, "ctypes", CDLL=fail)
    with pytest.raises(
        BluecommError, match=r"libpmix.so.2 cannot be loaded .*libpmix2"
    ):
        Pmix(0, DEADLINE_S)


def test_a_pmix_that_refuses_is_named(monkeypatch):
    class Library:
        @staticmethod
        def PMIx_Init(*arguments):  # noqa: N802 (libpmix's own name)
            return -25

    replace_in(monkeypatch, pmix, "ctypes", CDLL=lambda name: Library)
    with pytest.raises(BluecommError, match="PMIx: PMIx_Init failed with code -25"):
        Pmix(4, DEADLINE_S)


@pytest.mark.parametrize("silent", ["PMIx_Init", "PMIx_Get"])
def test_a_pmix_that_does_not_answer_is_named(monkeypatch, silent):
    end = threading.Event()

    class Library:
        def __getattr__(self, name):
            return lambda *_: end.wait() and 0 if name == silent else 0

    def get():
        manager = Pmix(4, 0.1 if silent == "PMIx_Init" else DEADLINE_S)
        manager._timeout_s = 0.1
        manager.get(0, "x")

    replace_in(monkeypatch, pmix, "ctypes", CDLL=lambda name: Library())
    try:
        with pytest.raises(CommunicationTimeout, match=rf"{silent} got no answer"):
            get()
    finally:
        end.set()


@pytest.mark.skipif(
    not HEADERS.exists() and not os.environ.get("CI"),
    reason="needs Debian's libpmix-dev, which CI has",
)
def test_declarations_of_pmix_are_those_of_its_header(tmp_path):
    source = tmp_path / "check.c"
    names = ("PMIX_SUCCESS", "PMIX_GLOBAL", "PMIX_BOOL", "PMIX_STRING")
    checks = [f"{name} == {getattr(pmix, name)}" for name in names]
    proc = pmix.PmixProc
    checks += [
        f"sizeof(pmix_value_t) == {pmix.VALUE_NBYTES}",
        f"sizeof(pmix_info_t) == {pmix.INFO_NBYTES}",
        f"sizeof(pmix_proc_t) == {pmix.ctypes.sizeof(proc)}",
        f"offsetof(pmix_proc_t, rank) == {proc.rank.offset}",
        f"offsetof(pmix_value_t, data) == {pmix.VALUE_DATA_OFFSET}",
        f"offsetof(pmix_info_t, value) == {pmix.INFO_VALUE_OFFSET}",
    ]
    lines = [f'_Static_assert({check}, "{check}");' for check in checks]
    source.write_text("#include <stddef.h>\n#include <pmix.h>\n" + "\n".join(lines))
    compiler = shutil.which("gcc") or "cc"
    command = [compiler, "-fsyntax-only", "-I", str(HEADERS), str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, True),
        ({"SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_STEP_ID": None}, False),
        ({"OMPI_COMM_WORLD_SIZE": "4"}, False),
        ({"MPI_LOCALNRANKS": "4"}, False),
    ],
)
def test_only_tasks_of_srun_itself_are_in_a_step(changes, expected):
    environ = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4"}
    environ.update({name: text for name, text in changes.items() if text is not None})
    for name, text in changes.items():
        if text is None:
            del environ[name]
    assert is_in_step(environ) is expected
