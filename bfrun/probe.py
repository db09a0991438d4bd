"""Facts about one machine: cores, GPUs, addresses, and what an interpreter imports.

Used by the pre-flight, by agents and by ``bluecomm``.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import json
import os
import platform
import re
import shutil
import socket
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import Any

VERSIONS_S = 30.0

# Runs in the interpreter of the ranks and reports what they would import. It reads
# files instead of importing, because importing torch takes more than a second, and
# package metadata may say otherwise. "-c" puts the current folder first into the path,
# where a script puts its own folder: the argument is the script, "" if not known.
VERSIONS = r"""
import importlib.machinery, importlib.util, json, os, re, sys, zipfile
if len(sys.argv) > 1 and sys.path[:1] == [""]:
    del sys.path[0]
    if sys.argv[1]:
        script = os.path.realpath(sys.argv[1])
        has_main = os.path.isdir(script) or zipfile.is_zipfile(script)
        sys.path.insert(0, script if has_main else os.path.dirname(script))
def folder(name):
    spec = importlib.util.find_spec(name)
    return list(spec.submodule_search_locations)[0] if spec else None
def version(name):
    if folder(name) is None:
        return None
    for file in ("version.py", "_version.py", "__init__.py"):
        path = os.path.join(folder(name), file)
        if os.path.exists(path):
            with open(path, encoding="utf-8") as source:
                line = r"^__version__.* = ['\"](.+)['\"]"
                found = re.search(line, source.read(), re.M)
            if found:
                return found.group(1)
    return "unknown"
python = "%d.%d.%d" % sys.version_info[:3]
native = folder("bluecomm") is not None and any(
    os.path.exists(os.path.join(folder("bluecomm"), "_native" + suffix))
    for suffix in importlib.machinery.EXTENSION_SUFFIXES
)
folders = [version("torch"), version("bluecomm"), folder("bluecomm")]
print(json.dumps([python, *folders, native]))
"""


def parse_cpu_list(text: str) -> list[int]:
    """Return the numbers in a list as the kernel writes it, such as ``0-3,8``."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus += range(int(first), int(last or first) + 1)
    return cpus


def numa_domains(
    cpus: Sequence[int], root: str = "/sys/devices/system/node"
) -> list[list[int]]:
    """Return ``cpus`` grouped by NUMA domain, or nothing if the kernel has none."""
    domains = []
    names = os.listdir(root) if os.path.isdir(root) else []
    for name in sorted(names):
        path = os.path.join(root, name, "cpulist")
        if name.startswith("node") and os.path.exists(path):
            with open(path) as file:
                mine = [cpu for cpu in parse_cpu_list(file.read()) if cpu in cpus]
            if mine:
                domains.append(mine)
    return domains


def visible_gpus(
    environ: Mapping[str, str], root: str = "/proc/driver/nvidia/gpus"
) -> list[str]:
    """Return the identifiers of the GPUs that CUDA would show."""
    count = len(os.listdir(root)) if os.path.isdir(root) else 0
    chosen = environ.get("CUDA_VISIBLE_DEVICES")
    if count == 0 or chosen is None:
        return [str(index) for index in range(count)]
    return [gpu.strip() for gpu in chosen.split(",") if gpu.strip() not in ("", "-1")]


def interface_addresses() -> list[list[str]]:
    """Return ``[interface, address]`` for each address that others might reach.

    Asks the kernel by netlink (RTM_GETADDR, rtnetlink(7)), because the simpler ioctl
    hides all but the first address of an interface. Leaves out loopback and link-local
    addresses.
    """
    found: list[list[str]] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as netlink:
        netlink.settimeout(5)
        netlink.send(struct.pack("=LHHLLBBBBL", 24, 22, 0x301, 1, 0, 0, 0, 0, 0, 0))
        finished = False
        while not finished:
            data = netlink.recv(65536)
            while data:
                length, kind = struct.unpack_from("=LH", data)
                if kind == 20:  # RTM_NEWADDR
                    found += _address(data[16:length])
                else:  # NLMSG_DONE or NLMSG_ERROR
                    finished = True
                data = data[(length + 3) & ~3 :]
    return found


def _address(message: bytes) -> list[list[str]]:
    family, _, _, scope, index = struct.unpack_from("=BBBBL", message)
    if family not in (socket.AF_INET, socket.AF_INET6) or scope >= 253:
        return []
    attributes = {}
    rest = message[8:]
    while len(rest) >= 4:
        length, kind = struct.unpack_from("=HH", rest)
        attributes[kind] = rest[4:length]
        rest = rest[(length + 3) & ~3 :]
    # On a point-to-point link, IFA_LOCAL is this end and IFA_ADDRESS the other end.
    packed = attributes.get(2) or attributes.get(1)
    if not packed:
        return []
    return [[socket.if_indextoname(index), socket.inet_ntop(family, packed)]]


def machine_facts(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts about this machine and its interpreter for the driver."""
    environ = dict(os.environ)
    environ.update(request["environment"])
    cpus = sorted(os.sched_getaffinity(0))
    command = request["command"] or ["python3"]
    program = shutil.which(command[0], path=environ.get("PATH"))
    if program is None and os.path.dirname(command[0]):
        candidate = os.path.join(request["cwd"], command[0])
        program = shutil.which(os.path.abspath(candidate))
    is_python = os.path.basename(program or "").startswith("python")
    facts: dict[str, Any] = {
        "hostname": socket.gethostname(),
        "system": platform.system(),
        "cpus": cpus,
        "numa": numa_domains(cpus),
        "gpus": visible_gpus(environ),
        "addresses": interface_addresses(),
        "program": program,
        "is_python": is_python,
        "has_cwd": os.path.isdir(request["cwd"]),
        "missing": [file for file in request["files"] if not os.path.isfile(file)],
    }
    interpreter = program if program and is_python else sys.executable
    is_known = is_python and request["command"]
    asked = versions_command(interpreter, command[1:] if is_known else None)
    facts.update(_versions(asked, environ, request["cwd"]))
    return facts


def versions_command(python: str, arguments: Sequence[str] | None) -> list[str]:
    """Return the command that prints what ``python`` with ``arguments`` would import.

    It keeps options of the interpreter, since they may change where it imports from.

    Args:
        python: The interpreter.
        arguments: Arguments of the ranks' command; None if it is not known.
    """
    options: list[str] = []
    rest = list(arguments or ())
    while rest:
        word = rest.pop(0)
        if not word.startswith("-"):
            return [python, *options, "-c", VERSIONS, word]
        # The first option in the word that takes a value, and what follows it there.
        found = re.match(r"-[a-zA-Z]*?([cmWX])(.*)", word)
        if found and found[1] in "cm":
            before = word[: found.start(1)]
            options += [before] if before != "-" else []
            break
        if word == "-":
            break
        options.append(word)
        if rest and (word == "--check-hash-based-pycs" or (found and not found[2])):
            options.append(rest.pop(0))
    script = [""] if arguments is None else []
    return [python, *options, "-c", VERSIONS, *script]


def _versions(
    command: Sequence[str], environ: Mapping[str, str], cwd: str
) -> dict[str, Any]:
    try:
        output = subprocess.check_output(
            command,
            env=environ,
            cwd=cwd if os.path.isdir(cwd) else None,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=VERSIONS_S,
        )
        answers = json.loads(output)
    except (OSError, subprocess.SubprocessError, ValueError):
        answers = [None, None, None, None, False]
    names = ("python", "torch", "bluecomm", "bluecomm_folder", "native")
    return dict(zip(names, answers))  # noqa: B905 (Python 3.8)
