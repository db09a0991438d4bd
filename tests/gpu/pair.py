"""Run two ranks of NCCL on one GPU, as if they were on two hosts.

NCCL refuses two ranks on one GPU of one host, and identifies a host by NCCL_HOSTID.
With different ids, NCCL uses neither shared memory nor peer access between the ranks:
all traffic goes through the network plugin, or through NCCL's own sockets.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

# Long, because the ranks take turns on the GPU: a step of NCCL takes two time slices.
LIMIT_S = 140

# Variables of NCCL for ranks that share a GPU.
NCCL_ON_ONE_GPU = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_RAS_ENABLE": "0",
    # Few enough that the kernels of both ranks fit on the GPU.
    "NCCL_MAX_CTAS": "4",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,GRAPH",
}
_COMMANDS = {
    "plugin": [sys.executable, "-m", "bluecomm.nccl_net", "--"],
    "socket": [],
}

Network = Literal["plugin", "socket"]


def run_pair(
    folder: Path,
    network: Network,
    what: str,
    variables: Mapping[str, str] | None = None,
    *,
    namespaces: Sequence[str] = (),
    program: str = "tests.gpu.program",
) -> list[Any]:
    """Run a program as two ranks and return the result of each.

    Args:
        folder: Folder for NCCL's log of each rank, empty or not existing.
        network: Network that carries NCCL's traffic.
        what: Part of the program to run.
        variables: Environment variables for both ranks.
        namespaces: Network namespace of each rank; empty if both are in this one.
        program: Module of the ranks.

    Raises:
        RuntimeError: A rank failed, did not end, or used another network. The text has
            the end of its output.
    """
    folder.mkdir(parents=True, exist_ok=True)
    command = [*_COMMANDS[network], sys.executable, "-m", program, what]
    processes = []
    try:
        for rank in range(2):
            environment = {
                **os.environ,
                "WORLD_SIZE": "2",
                **NCCL_ON_ONE_GPU,
                **({"NCCL_NET": "Socket"} if network == "socket" else {}),
                **(variables or {}),
                "RANK": str(rank),
                "MEETING": str(folder / "meeting"),
                "NCCL_HOSTID": f"bluecomm-host-{rank}",
                "NCCL_DEBUG_FILE": str(folder / f"nccl-{rank}.log"),
            }
            inside = ["ip", "netns", "exec", namespaces[rank]] if namespaces else []
            with open(folder / f"errors-{rank}.txt", "wb") as errors:
                processes.append(
                    subprocess.Popen(
                        [*inside, *command],
                        env=environment,
                        stdout=subprocess.PIPE,
                        stderr=errors,
                    )
                )
        return [
            _result(process, folder, rank, network)
            for rank, process in enumerate(processes)
        ]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


def _result(
    process: subprocess.Popen[bytes], folder: Path, rank: int, network: Network
) -> Any:
    try:
        said, _ = process.communicate(timeout=LIMIT_S)
        ended = f"ended with {process.returncode}"
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        ended = f"did not end within {LIMIT_S} s"
    log = _end_of(folder / f"nccl-{rank}.log", 1 << 24)
    expected = "via NET/BlueComm" if network == "plugin" else "via NET/Socket"
    if process.returncode != 0 or expected not in log:
        # A rank may fail because of the other one, so show the output of both.
        wrote = "\n".join(
            f"Rank {each} wrote:\n{_end_of(folder / f'errors-{each}.txt', 3000)}"
            for each in range(2)
        )
        raise RuntimeError(
            f"rank {rank} {ended}; '{expected}' is "
            f"{'' if expected in log else 'not '}in NCCL's log.\n{wrote}\n"
            f"The end of the log of rank {rank}:\n{log[-3000:]}"
        )
    return json.loads(said.decode().splitlines()[-1])


def _end_of(path: Path, nbytes: int) -> str:
    data = path.read_bytes() if path.is_file() else b""
    return data[-nbytes:].decode(errors="replace")
