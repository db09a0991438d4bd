import ast
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import bfrun.launch.bootstrap as bootstrap
from bfrun.launch.archive import chosen, source_archive
from bfrun.mpi import plan as mpi_plan
from tests.support.deadlines import DEADLINE_S

FOLDER = Path(bootstrap.__file__).parents[1]
SENT = {"agent": bootstrap.AGENT_FILES, "mpirun": mpi_plan.FILES}


@pytest.mark.parametrize(
    ("sent", "name"), [(sent, name) for sent in SENT for name in SENT[sent]]
)
def test_sent_files_need_each_other_and_the_standard_library_only(sent, name):
    modules = {
        one[: -len(".py")].replace("/", ".").removesuffix(".__init__")
        for one in SENT[sent]
    }
    tree = ast.parse((FOLDER / name).read_text(), feature_version=(3, 8))
    for node in ast.walk(tree):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module]
            if node.module in ("bfrun", "bfrun.agent"):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
        for name in names:
            package, _, rest = name.partition(".")
            shipped = package == "bfrun" and rest in modules
            assert shipped or package in sys.stdlib_module_names, name


def test_the_archive_is_the_same_each_time_and_holds_the_agent_only():
    data = source_archive(bootstrap.AGENT_FILES)
    assert data == source_archive(bootstrap.AGENT_FILES)
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        expected = {f"bfrun/{name}" for name in bootstrap.AGENT_FILES}
        assert set(archive.namelist()) == expected | {"bfrun/__init__.py"}
        assert archive.read("bfrun/__init__.py") == b""


def test_markers_differ():
    assert bootstrap.new_marker() != bootstrap.new_marker()


def test_one_interpreter_is_started_directly():
    argv = bootstrap.agent_argv(["/usr/bin/python3"], b"word", 7)
    assert argv[:3] == ["/usr/bin/python3", "-I", "-S"]
    assert argv[-2:] == ["7", "word"]


@pytest.mark.parametrize(
    "pythons", [["/no/such", sys.executable], [sys.executable, "x"]]
)
def test_the_first_interpreter_that_exists_is_taken(pythons):
    argv = bootstrap.agent_argv(pythons, b"word", 3)
    index = argv.index("-c", 3)
    argv[index + 1] = "import sys; print(sys.executable, sys.argv[1:])"
    done = subprocess.run(
        argv, capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout == f"{sys.executable} ['3', 'word']\n"


def test_an_error_names_all_interpreters_that_do_not_exist():
    argv = chosen(["/no/such", "/nor/this"], ["-c", "pass"])
    done = subprocess.run(argv, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.stderr == "no such interpreter: /no/such /nor/this\n"
    assert done.returncode == 127


@given(st.binary(max_size=300), st.binary(max_size=50), st.integers(1, 20))
def test_banners_are_skipped_however_they_are_split(banner, frames, step):
    marker = b"--a-marker--"
    data = banner + marker + frames
    expected = data.partition(marker)[2]
    skipper, got = bootstrap.MarkerFilter(marker), b""
    for start in range(0, len(data), step):
        got += skipper.feed(data[start : start + step])
    assert got == expected
    assert skipper.found


def test_the_banner_is_kept_for_messages():
    skipper = bootstrap.MarkerFilter(b"--a-marker--")
    assert skipper.feed(b"Welcome!\n") == b""
    assert skipper.banner == "Welcome!"
    assert not skipper.found
