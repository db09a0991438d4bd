"""A process without NCCL."""

import pytest

from bluecomm._native import NcclLibrary


def test_a_missing_nccl_is_an_error_that_names_the_remedies():
    with pytest.raises(
        RuntimeError,
        match=r"NCCL cannot be loaded: .*not-there.so.*"
        "set BLUECOMM_DEVICE_TRANSPORT=staged",
    ):
        NcclLibrary(["/not-there.so"])
