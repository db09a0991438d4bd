import tempfile

import pytest

from bfrun.agent import guard


def test_a_folder_that_cannot_be_made(monkeypatch):
    def fail(**how):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(tempfile, "mkdtemp", fail)
    with pytest.raises(SystemExit, match=r"No space left .* set TMPDIR to another"):
        guard._make_folder()
