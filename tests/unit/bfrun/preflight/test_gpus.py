"""The GPUs in the pre-flight's table, and the interfaces that NCCL takes."""

import io
import re
import sys

import pytest

from bfrun.hosts import Host
from bfrun.preflight.check import print_check
from bfrun.preflight.gpus import gpu_facts, nccl_interfaces
from bfrun.preflight.preflight import HostReport

FACTS = {
    "driver": "13.0",
    "names": ["NVIDIA H100", "NVIDIA H100", "NVIDIA A10"],
    "nccl": "2.29.7",
    "problem": None,
    "links": [],
}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, ["eth0", "eth1"]),
        ("", ["eth0", "eth1"]),
        ("eth", ["eth0", "eth1"]),
        ("eth1,docker", ["docker0", "eth1"]),
        ("=eth", []),
        ("=eth1", ["eth1"]),
        ("^docker,eth0", ["eth1"]),
        ("^=eth0", ["docker0", "eth1"]),
    ],
)
def test_nccl_takes_the_chosen_interfaces(choice, expected):
    assert nccl_interfaces(["docker0", "eth0", "eth1", "eth1"], choice) == expected


def test_nccl_prefers_infiniband_and_takes_docker_last():
    assert nccl_interfaces(["eth0", "ib0", "ib1"], None) == ["ib0", "ib1"]
    assert nccl_interfaces(["virbr0", "docker0"], None) == ["docker0"]
    assert nccl_interfaces([], None) == []


def report_of(host, gpus, **facts):
    answer = {
        "python": "3.11.7",
        "torch": None,
        "bluecomm": None,
        "cpus": [0],
        "gpus": gpus,
        "addresses": [],
    }
    report = HostReport(Host(host), answer)
    report.gpus = {**FACTS, **facts}
    report.nccl_network = "eth0, eth1"
    return report


def printed(*reports):
    text = io.StringIO()
    assert print_check(reports, text)
    return text.getvalue().splitlines()


def described(gpus, **facts):
    lines = printed(report_of("a", gpus, **facts))
    return [line for line in lines if "host '" in line]


def test_a_line_describes_the_gpus_of_a_host():
    assert described(["0", "1", "2"]) == [
        "host 'a': 2 x NVIDIA H100, 1 x NVIDIA A10; CUDA driver 13.0; "
        "NCCL 2.29.7 over eth0, eth1"
    ]
    [line] = described(["0", "1", "2"], nccl=None)
    assert line.endswith("; no NCCL")
    unusable = {"names": [], "driver": None, "problem": "libcuda.so.1: not found"}
    assert described(["0"], **unusable) == [
        "host 'a': 1 GPU, which ranks cannot use: libcuda.so.1: not found"
    ]
    assert described([], **unusable) == []


def test_links_between_gpus_are_a_line_or_a_table():
    alike = report_of("a", ["0", "1"], links=[[0, 1, "NVLink"]])
    assert "host 'a': links between GPUs: NVLink" in printed(alike)
    links = [[0, 1, "NVLink"], [0, 2, "SYS"], [1, 2, "SYS"]]
    lines = printed(report_of("a", ["0", "1", "2"], links=links))
    start = lines.index("host 'a': links between GPUs:")
    assert lines[start + 1 : start + 5] == [
        "        GPU 0   GPU 1  GPU 2",
        "GPU 0       -  NVLink    SYS",
        "GPU 1  NVLink       -    SYS",
        "GPU 2     SYS     SYS      -",
    ]


def test_unlike_versions_on_hosts_with_gpus_are_a_warning():
    reports = report_of("a", ["0"]), report_of("b", ["0"], nccl="2.21.5", driver="12.4")
    assert [line for line in printed(*reports) if "warning" in line] == [
        "warning: NCCL differs among hosts: 2.29.7 on 'a', 2.21.5 on 'b'; tensors on "
        "GPUs then travel through memory of the host",
        "warning: CUDA's driver differs among hosts: 13.0 on 'a', 12.4 on 'b'; the "
        "older one limits the whole job",
    ]
    without = report_of("c", [], names=[], nccl=None)
    assert not [line for line in printed(reports[0], without) if "warning" in line]


def test_a_machine_without_cuda_says_why():
    facts = gpu_facts({"python": sys.executable, "environment": {}})
    if facts["driver"] is None:  # cuInit fails where the driver has no GPU
        assert re.search("libcuda|cuInit", facts["problem"])
    broken = gpu_facts({"python": "/no/such/python", "environment": {}})
    assert "/no/such/python" in broken["problem"]
    crashed = gpu_facts({"python": "/bin/false", "environment": {}})
    assert crashed["problem"].endswith("ended with code 1")
