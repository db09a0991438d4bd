"""Rules of the Makefile, in a small tree of their own."""

import shutil
import subprocess
from pathlib import Path

from tests.support.deadlines import DEADLINE_S

ROOT = Path(__file__).parents[2]


def test_makes_at_the_same_time_do_not_share_files(tmp_path):
    shutil.copy(ROOT / "Makefile", tmp_path)
    (tmp_path / "native/common").mkdir(parents=True)
    (tmp_path / "native/common/a.cpp").touch()
    batch = tmp_path / "build/batches/common.cpp"
    batch.parent.mkdir(parents=True)
    others = batch.with_name("common.cpp.new")  # another make writes it now
    others.write_text("half")
    command = ["make", "build/batches/common.cpp"]
    makes = [subprocess.Popen(command, cwd=tmp_path) for _ in range(3)]
    assert [make.wait(DEADLINE_S) for make in makes] == [0, 0, 0]
    assert batch.read_text() == '#include "common/a.cpp"\n'
    assert sorted(batch.parent.iterdir()) == [batch, others]
