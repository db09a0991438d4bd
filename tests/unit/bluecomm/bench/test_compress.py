"""``compress``: the table, and the results as JSON."""

import json

import pytest
import torch

from bluecomm.bench.__main__ import main
from bluecomm.bench.compress import CODECS, YARDSTICKS


def test_all_codecs_are_measured_beside_yardsticks(tmp_path, capsys):
    threads = torch.get_num_threads()
    path = tmp_path / "compress.json"
    assert main(["compress", "--mib", "1", "--rounds", "2", "--json", str(path)]) == 0
    assert torch.get_num_threads() == threads
    timed = json.loads(path.read_text())["timed"]
    assert [one["name"] for one in timed] == [*YARDSTICKS, *CODECS]
    for one in timed[len(YARDSTICKS) :]:
        assert len(one["encode_ms"]) == len(one["decode_ms"]) == 2
        assert one["ratio"] > 1
    assert len(capsys.readouterr().out.splitlines()) == 2 + len(timed)


def test_a_file_that_cannot_be_written_is_refused_first(tmp_path, capsys):
    assert main(["compress", "--json", str(tmp_path / "no" / "x.json")]) == 2
    assert "compress: " in capsys.readouterr().err


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_device_that_is_missing_is_refused_first(capsys):
    assert main(["compress", "--device", "cuda"]) == 2
    assert "compress: --device cuda: there is no GPU" in capsys.readouterr().err
