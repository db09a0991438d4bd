"""The network plugin under NCCL: results of operations, training, and speed."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping

from tests.gpu.job import Check, Job, NotRunError, cases_of
from tests.gpu.pair import Network, run_pair
from tests.gpu.speed import compare_speeds

LARGEST = 1 << 30
# Limits of the two links between the hosts.
RATES_MBIT = (1000, 250)


def operations(job: Job, variables: Mapping[str, str]) -> str:
    """Compare every element from 8 bytes to 1 GiB."""
    for found in run_pair(job.folder, "plugin", "operations", variables):
        assert found["wrong"] == []
        assert found["sizes"][0] == 8
        assert found["sizes"][-1] == LARGEST, "the GPU has too little free memory"
    return f"{found['gpu']}, NCCL {'.'.join(map(str, found['nccl']))}"


def ddp(job: Job) -> str:
    """Compare with one process that has the whole batch."""
    first, second = run_pair(job.folder, "plugin", "ddp")
    assert first["difference"] < 1e-4
    assert second["difference"] < 1e-4
    assert first["checksum"] == second["checksum"]
    return f"differs by {first['difference']:.1e} from one process"


def loopback(job: Job) -> str:
    def measure(network: Network, number: int) -> dict[str, float]:
        found: dict[str, float] = run_pair(
            job.folder / f"{network}-{number}", network, "speed"
        )[0]
        return found

    return compare_speeds(measure, rounds=3)


def unequal_paths(job: Job) -> str:
    """Compare over two links of unlike rates, shaped by tc's token bucket filter.

    Raises:
        NotRunError: This process is not root, or a tool is missing.
    """
    paths = cases_of("tests.support.paths")
    if os.geteuid() != 0:
        raise NotRunError("NOT MEASURED: only root can make network namespaces")
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        raise NotRunError(f"NOT MEASURED: {missing[0]} is missing; install iproute2")
    with contextlib.ExitStack() as links:
        try:
            made = links.enter_context(paths.make_paths(len(RATES_MBIT)))
            for link, mbit in enumerate(RATES_MBIT):
                made.shape(link, mbit)
        except RuntimeError as error:  # a container may lack the right
            raise NotRunError(f"NOT MEASURED: {error}") from error
        names = ",".join(f"eth{link}" for link in range(made.links))

        def measure(network: Network, number: int) -> dict[str, float]:
            found: dict[str, float] = run_pair(
                *(job.folder / f"unequal-{network}-{number}", network, "speed"),
                {"NCCL_SOCKET_IFNAME": f"={names}"},
                namespaces=(made.here, made.there),
            )[0]
            return found

        table = compare_speeds(measure, rounds=1)
    rates = " and ".join(map(str, RATES_MBIT))
    return f"links of {rates} Mbit/s\n{table}"


def _operations(variables: Mapping[str, str]) -> Check:
    return Check(lambda job: operations(job, variables), limit_s=150.0, needs_gpu=True)


CHECKS = {
    "8 bytes to 1 GiB, Simple": _operations({"NCCL_PROTO": "Simple"}),
    "DDP": Check(ddp, needs_gpu=True),
    "sockets over loopback": Check(loopback, limit_s=200.0, needs_gpu=True),
    "sockets over unequal paths": Check(unequal_paths, limit_s=150.0, needs_gpu=True),
    "8 bytes to 1 GiB, LL": _operations({"NCCL_PROTO": "LL"}),
    "8 bytes to 1 GiB, LL128": _operations({"NCCL_PROTO": "LL128"}),
    "checksums and 4 streams": _operations(
        {"BLUECOMM_NET_CHECKSUM": "1", "BLUECOMM_NET_STREAMS": "4"}
    ),
}
