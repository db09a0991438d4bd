"""Reports of the exit watch about programs that end; each is a forked child."""

import subprocess
import sys

import pytest

# program: (its code, what the watch reports, its exit status)
PROGRAMS = {
    "returns": ("pass", [], 0),
    "raises": (
        "raise KeyError('no luck')",
        ["raised KeyError: 'no luck' -> 1 ()"],
        1,
    ),
    "raises in a function": (
        "def f():\n    try: 1 / 0\n    finally: print('cleanup')\nf()",
        ["cleanup", "raised ZeroDivisionError: division by zero -> 1 ()"],
        1,
    ),
    "raises without text": ("raise ValueError", ["raised ValueError:  -> 1 ()"], 1),
    "raises several lines": (
        "raise ValueError('\\none\\ntwo')",
        ["raised ValueError: one -> 1 ()"],
        1,
    ),
    "raises what cannot be shown": (
        "class Odd(Exception):\n    def __str__(self): return 1 / 0\nraise Odd",
        ["raised Odd:  -> 1 ()"],
        1,
    ),
    "catches": ("try: 1 / 0\nexcept ZeroDivisionError: pass", [], 0),
    "exits": ("sys.exit(3)", ["called sys.exit(3):  -> 3 ()"], 3),
    "exits with a text": ("sys.exit('bad')", ["called sys.exit('bad'):  -> 1 ()"], 1),
    "exits with 0": ("sys.exit(0)", [], 0),
    "exits with 256": ("sys.exit(256)", [], 0),
    "exits without status": ("sys.exit()", [], 0),
    "exits in a with": (
        "import contextlib\nwith contextlib.suppress(KeyError): sys.exit(4)",
        ["called sys.exit(4):  -> 4 ()"],
        4,
    ),
    "exits after an error": (
        "try: 1 / 0\nexcept ZeroDivisionError: sys.exit(5)",
        ["called sys.exit(5): ZeroDivisionError: division by zero -> 5 ()"],
        5,
    ),
    "catches its exit": ("try: sys.exit(3)\nexcept SystemExit: pass", [], 0),
    "exits otherwise after all": (
        "try: sys.exit(3)\nexcept SystemExit: sys.exit(0)",
        [],
        0,
    ),
    "exits in a thread": (
        "t = threading.Thread(target=sys.exit, args=(3,))\nt.start(); t.join()",
        [],
        0,
    ),
    "raises in a thread": (
        "t = threading.Thread(target=lambda: 1 / 0, name='T')\nt.start(); t.join()",
        ["thread T: ZeroDivisionError: division by zero"],
        0,
    ),
    "names lost peers": (
        "from bluecomm.errors import PeerLostError\n"
        "try: raise PeerLostError('lost', peers=[4])\n"
        "except PeerLostError as error: raise RuntimeError('so') from error",
        ["raised RuntimeError: so -> 1 (4,)"],
        1,
    ),
    "has its own hook": (
        "sys.excepthook = lambda *error: print('mine')\nraise KeyError(1)",
        ["mine", "raised KeyError: 1 -> 1 ()"],
        1,
    ),
    "has a hook that calls the watch": (
        "before = sys.excepthook\n"
        "def hook(*error):\n    before(*error)\n    print('mine')\n"
        "sys.excepthook = hook\nraise KeyError(1)",
        ["raised KeyError: 1 -> 1 ()", "mine"],
        1,
    ),
    "calls the hook itself": (
        "try: 1 / 0\nexcept ZeroDivisionError: sys.excepthook(*sys.exc_info())",
        [],
        0,
    ),
    "is interactive": ("sys.ps1 = '> '\nraise KeyError(1)", [], 1),
    "has removed the watch": ("watch.remove()\nsys.exit(3)", [], 3),
    "is a fork": (
        "pid = os.fork()\nif pid == 0: raise KeyError(1)\nos.waitpid(pid, 0)",
        [],
        0,
    ),
    "has lost a hook": (
        "threading.excepthook = threading.__excepthook__\n"
        "watch.remove(); watch.install()\n"
        "t = threading.Thread(target=lambda: 1 / 0, name='T')\nt.start(); t.join()",
        ["thread T: ZeroDivisionError: division by zero"],
        0,
    ),
    "installs the watch again": (
        "before = sys.excepthook\nsys.excepthook = lambda *error: before(*error)\n"
        "watch.install()\nraise KeyError(1)",
        ["raised KeyError: 1 -> 1 ()"],
        1,
    ),
}

HARNESS = f"""
import atexit, os, sys, threading
from bluecomm.runtime.exit_watch import ExitWatch

def failed(f):
    print(f"{{f.deed}}: {{f.reason}} -> {{f.status}} {{f.peers}}")

def thread_failed(name, error):
    print(f"thread {{name}}: {{error}}")

for name, (code, *_) in {PROGRAMS!r}.items():
    pid = os.fork()
    if pid == 0:
        watch = ExitWatch(failed, thread_failed)
        watch.install()
        atexit.register(watch.failure)
        exec(code)
        break
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    print(f"== {{name}}: {{status}}", flush=True)
"""


@pytest.fixture(scope="module")
def ends():
    """Run all programs; return what each printed, and its exit status."""
    command = [sys.executable, "-c", HARNESS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found, lines = {}, []
    for line in done.stdout.splitlines():
        if line.startswith("== "):
            name, _, status = line[3:].rpartition(": ")
            found[name] = lines, int(status)
            lines = []
        else:
            lines.append(line)
    return found


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_watch_reports_an_error_that_ends_the_program(name, ends):
    _, *expected = PROGRAMS[name]
    assert list(ends[name]) == expected
