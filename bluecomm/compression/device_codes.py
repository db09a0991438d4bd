"""Whether codes of tensors on a device are made there, or on the host."""

from __future__ import annotations

import functools
import logging

import torch

from bluecomm.compression.codec import Codec
from bluecomm.device.cuda_staging import CudaStaging
from bluecomm.device.runtime import current_runtime
from bluecomm.device.staging import Staging

_log = logging.getLogger("bluecomm")

# Values of the sample that both sides encode, in several chunks of most codecs.
_SAMPLE = 5000


def encodes_there(
    codec: Codec, staging: Staging | None, setting: str, timeout_s: float
) -> bool:
    """Return whether a codec's kernels are used on a device.

    Each rank decides alone, because the bytes are the same: before the first use the
    device encodes and decodes a sample, and the host compares the bits with its own.
    If it is decided otherwise although the setting is ``"auto"``, a warning says why,
    once for each reason.

    Args:
        codec: The codec.
        staging: The device; ``None`` if tensors are on the host.
        setting: ``device_codes`` of the configuration.
        timeout_s: Seconds that the device may take for the sample.
    """
    if setting == "host" or not isinstance(staging, CudaStaging):
        return False
    problem = current_runtime().why_no_kernels()
    if problem is None:
        problem = _difference(codec, staging, timeout_s)
    if problem is not None:
        _warn_once(problem)
    return problem is None


def _difference(codec: Codec, staging: Staging, timeout_s: float) -> str | None:
    """Return what differs between the codes of a sample; ``None`` if nothing does."""
    count = _SAMPLE + getattr(codec, "k", 0)
    generator = torch.Generator("cpu").manual_seed(count)
    # Magnitudes of many sizes.
    values = torch.randn(count, generator=generator, device="cpu")
    values *= torch.exp2(
        torch.randint(-20, 20, (count,), generator=generator, device="cpu")
    )
    nbytes = codec.encoded_nbytes(count, values.dtype)
    code = values.new_zeros(nbytes, dtype=torch.uint8)
    decoded = torch.zeros_like(values)
    codec.encode(values, code)
    codec.decode(code, decoded)
    try:
        there = staging.to_device(values)
        code_there = there.new_zeros(nbytes, dtype=torch.uint8)
        codec.start_encode(there, code_there)
        codec.start_decode(code_there, there)
        for name, expected, got in (
            ("codes", code, code_there),
            ("decoded values", decoded, there),
        ):
            copy = staging.to_host(got)
            copy.wait("the check of a codec", timeout_s)
            if not torch.equal(
                copy.values.view(torch.uint8), expected.view(torch.uint8)
            ):
                return f"{name} of {codec!r} on {staging.name} differ from the CPU's"
    except Exception as error:  # of any of Numba's compilers
        return f"{codec!r} fails on {staging.name} ({error})"
    return None


@functools.cache
def _warn_once(problem: str) -> None:
    _log.warning(
        "tensors on GPUs are encoded and decoded on the host, because %s; install "
        "bluecomm[gpu], or choose this with BLUECOMM_DEVICE_CODES=host without a "
        "warning",
        problem,
    )
