import pytest

from bfrun import private_folder
from bfrun.agent import guard
from tests.support.stand_in import replace_in


def test_a_folder_that_cannot_be_made(monkeypatch):
    def fail(**how):
        raise OSError(28, "No space left on device")

    replace_in(monkeypatch, private_folder, "tempfile", mkdtemp=fail)
    with pytest.raises(SystemExit, match=r"No space left .* set TMPDIR to another"):
        guard._make_folder()
