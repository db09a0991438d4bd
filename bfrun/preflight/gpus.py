"""Facts about the GPUs of one machine: their names, CUDA's driver, and NCCL.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

LIMIT_S = 30.0

# Runs in the interpreter of the ranks, whose packages may include NCCL, and in a
# process of its own, which a broken driver may crash or stop.
_SCRIPT = r"""
import ctypes, importlib.util, json, os
facts = {"driver": None, "names": [], "nccl": None, "problem": None, "links": []}
def check(result, function):
    if result:
        raise OSError("%s returned CUDA error %d" % (function, result))
# As nvidia-smi writes them.
ANCESTORS = {0: "one board", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
def nvml_devices(cuda, count):
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        check(nvml.nvmlInit_v2(), "nvmlInit")
        nvml.nvmlDeviceGetP2PStatus, nvml.nvmlDeviceGetTopologyCommonAncestor
        devices = []
        for device in range(count):
            text, handle = ctypes.create_string_buffer(32), ctypes.c_void_p()
            check(cuda.cuDeviceGetPCIBusId(text, 32, device), "cuDeviceGetPCIBusId")
            find = nvml.nvmlDeviceGetHandleByPciBusId_v2
            check(find(text, ctypes.byref(handle)), "nvmlDeviceGetHandleByPciBusId")
            devices.append(handle)
        return nvml, devices
    except (OSError, AttributeError):
        return None, []
def links(cuda, count):
    nvml, devices = nvml_devices(cuda, count)
    found, value = [], ctypes.c_int()
    for i in range(count):
        for j in range(i + 1, count):
            word = "peer access" if all(
                cuda.cuDeviceCanAccessPeer(ctypes.byref(value), *pair) == 0
                and value.value for pair in ((i, j), (j, i))) else "no peer access"
            if nvml is not None:
                pair = devices[i], devices[j]
                nvlink = nvml.nvmlDeviceGetP2PStatus(*pair, 2, ctypes.byref(value))
                if nvlink == 0 and value.value == 0:
                    word = "NVLink"
                elif not nvml.nvmlDeviceGetTopologyCommonAncestor(
                        *pair, ctypes.byref(value)):
                    word = ANCESTORS.get(value.value, "PCIe") + ", " + word
            found.append([i, j, word])
    return found
try:
    cuda = ctypes.CDLL("libcuda.so.1")
    number, name = ctypes.c_int(), ctypes.create_string_buffer(100)
    check(cuda.cuInit(0), "cuInit")
    check(cuda.cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
    facts["driver"] = "%d.%d" % (number.value // 1000, number.value % 1000 // 10)
    check(cuda.cuDeviceGetCount(ctypes.byref(number)), "cuDeviceGetCount")
    for device in range(number.value):
        check(cuda.cuDeviceGetName(name, len(name), device), "cuDeviceGetName")
        facts["names"].append(name.value.decode(errors="replace"))
    facts["links"] = links(cuda, len(facts["names"]))
except (OSError, AttributeError) as error:
    facts["problem"] = str(error)
try:
    found = importlib.util.find_spec("nvidia.nccl")
except ModuleNotFoundError:
    found = None
folders = list(found.submodule_search_locations or ()) if found else []
for path in [os.path.join(one, "lib", "libnccl.so.2") for one in folders] + [
    "libnccl.so.2"
]:
    try:
        code = ctypes.c_int()
        if ctypes.CDLL(path).ncclGetVersion(ctypes.byref(code)) == 0:
            # NCCL encoded its version differently before 2.9.
            major = 10000 if code.value >= 10000 else 1000
            parts = code.value // major, code.value % major // 100, code.value % 100
            facts["nccl"] = "%d.%d.%d" % parts
            break
    except (OSError, AttributeError):
        pass
print(json.dumps(facts))
"""

# The interfaces that NCCL takes only if there is no other one.
_LAST = ("docker", "lo", "virbr")


def gpu_facts(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a rank finds on this machine.

    Args:
        request: ``python`` is the interpreter of the ranks, or None if it is not
            known, and ``environment`` has variables that they get.

    Returns:
        ``driver`` and ``nccl`` are versions, or None where the library cannot be used;
        ``names`` are those of the GPUs that a rank sees; ``links`` has two GPUs and a
        text for each pair of them; ``problem`` says why CUDA cannot be used, or is
        None.
    """
    environ = {**os.environ, **request["environment"]}
    facts: dict[str, Any] = {"driver": None, "names": [], "nccl": None, "links": []}
    try:
        output = subprocess.check_output(
            [request["python"] or sys.executable, "-c", _SCRIPT],
            env=environ,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LIMIT_S,
        )
        facts = json.loads(output)
    except subprocess.TimeoutExpired:
        facts["problem"] = f"CUDA's driver has not answered within {LIMIT_S:g} s"
    except subprocess.CalledProcessError as error:
        code = error.returncode
        facts["problem"] = f"the program that asks CUDA's driver ended with code {code}"
    except (OSError, ValueError) as error:
        facts["problem"] = str(error)
    return facts


def nccl_interfaces(names: Sequence[str], choice: str | None) -> list[str]:
    """Return the network interfaces that NCCL's own sockets take.

    Args:
        names: Interfaces of the machine that have an address.
        choice: ``NCCL_SOCKET_IFNAME``, or None.
    """
    known = list(dict.fromkeys(names))
    if choice:
        is_excluding = choice.startswith("^")
        words = choice.lstrip("^")
        is_exact = words.startswith("=")
        wanted = [word for word in words.lstrip("=").split(",") if word]

        def is_named(name: str) -> bool:
            if is_exact:
                return name in wanted
            return name.startswith(tuple(wanted))

        return [name for name in known if is_named(name) != is_excluding]
    infiniband = [name for name in known if name.startswith("ib")]
    if infiniband:
        return infiniband
    ordinary = [name for name in known if not name.startswith(_LAST)]
    if ordinary:
        return ordinary
    for prefix in _LAST:
        last = [name for name in known if name.startswith(prefix)]
        if last:
            return last
    return []
