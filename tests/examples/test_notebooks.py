"""The notebooks run from top to bottom, and check their own promises.

They are stored without outputs, since a picture in JSON makes an unreadable diff, and
stored outputs could be outdated.
"""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.examples.launch import EXAMPLES
from tests.support.deadlines import JOB_S
from tests.support.notebook import notebook_in

NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_from_top_to_bottom(path: Path, tmp_path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    with notebook_in(tmp_path) as book:
        settings = {"JUPYTER_RUNTIME_DIR": str(tmp_path), **book.environ}
        client = NotebookClient(
            notebook,
            timeout=JOB_S,
            resources={"metadata": {"path": str(EXAMPLES)}},
        )
        client.execute(env=settings)
        book.wait_until_empty()


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_holds_no_outputs(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert len(code) > 3
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
