"""Test the network plugin under NCCL: results of operations, and training with DDP.

No test is skipped: without a GPU, ``make test-gpu`` fails.
"""

from __future__ import annotations

import pytest

from tests.gpu.pair import run_pair

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("protocol", ["Simple", "LL", "LL128"])
def test_every_element_is_right_from_8_bytes_to_1_gib(tmp_path, protocol):
    for found in run_pair(tmp_path, "plugin", "operations", {"NCCL_PROTO": protocol}):
        assert found["wrong"] == []
        assert found["sizes"][0] == 8
        assert found["sizes"][-1] == 1 << 30, "the GPU has too little free memory"


def test_with_checksums_and_several_streams(tmp_path):
    variables = {"BLUECOMM_NET_CHECKSUM": "1", "BLUECOMM_NET_STREAMS": "4"}
    for found in run_pair(tmp_path, "plugin", "operations", variables):
        assert found["wrong"] == []


def test_ddp_trains_as_one_process_does_on_the_whole_batch(tmp_path):
    first, second = run_pair(tmp_path, "plugin", "ddp")
    assert first["difference"] < 1e-4
    assert second["difference"] < 1e-4
    assert first["checksum"] == second["checksum"]
