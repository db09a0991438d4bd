"""Process groups of torch in ranks that mpirun has started."""

from __future__ import annotations

import sys

import pytest

from tests.launchers.support import findings
from tests.support.mpi import environment, find_mpi, run

pytestmark = pytest.mark.mpi


@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_process_groups_share_the_world_of_init(transport, tmp_path):
    program = (sys.executable, "-m", "tests.launchers.both_apis", str(tmp_path))
    variables = {**environment(), "BLUECOMM_TRANSPORT": transport}
    command = find_mpi("debian-openmpi").command(2, *program)
    done = run(command, variables, limit_s=600)
    assert done.returncode == 0, done.stderr
    found = findings(done)
    assert [one["rank"] for one in found] == [0, 1]
    sources = {one["source"].partition(",")[0] for one in found}
    assert len(sources) == 1
    assert ("Open MPI" in sources.pop()) == (transport == "mpi")
