"""Several hosts on one machine: network namespaces, each with its own sshd.

Every host has its own address, hostname and /dev/shm, and shares the file system and
the process ids with the others. Needs root, iproute2 and openssh-server.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.deadlines import DEADLINE_S, wait_until
from tests.support.python_path import python_path

# Instructions of classic BPF, the address of a random number (SKF_AD_RANDOM), and
# results of a filter (linux/filter.h, linux/pkt_cls.h).
_LOAD, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x35, 0x06
_RANDOM = 2**32 - 0x1000 + 56
_PASS, _DROP = 0, 2
# Agents whose bfrun was killed end their ranks and remove their folders within this
# time.
_ENDING_S = 10.0
_TOOLS = ("ip", "bridge", "unshare", "nsenter", "sshd", "ssh-keygen")


def run(*command: str) -> str:
    """Run a set-up command; return its output, or raise with its error text."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def list_namespaces() -> list[str]:
    """Return the names of all network namespaces of this machine."""
    return [line.split()[0] for line in run("ip", "netns", "list").splitlines()]


@dataclass
class ClusterHost:
    """One host; ``ssh`` with the cluster's settings reaches it by ``name``."""

    name: str
    address: str
    namespace: str
    bridge_port: str
    sshd: subprocess.Popen[bytes]

    def processes(self) -> dict[int, str]:
        """Return pid and command line of all processes of this host except sshd's."""
        found = {}
        for word in run("ip", "netns", "pids", self.namespace).split():
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{word}/cmdline").read_bytes()
                text = command.replace(b"\0", b" ").decode(errors="replace").strip()
                # A zombie has no command line and holds no resources.
                if text and not re.match(r"\S*sshd\b", text):
                    found[int(word)] = text
        return found

    def run(self, *command: str) -> str:
        """Run a command in all namespaces of this host."""
        inside = ["nsenter", "-t", str(self.sshd.pid), "-n", "-u", "-m"]
        return run(*inside, *command)

    def cut_link(self) -> None:
        """Drop all packets of this host silently, as a pulled cable does."""
        run("ip", "link", "set", self.bridge_port, "down")

    def stop_forwarding(self) -> None:
        """Drop all packets of this host for a moment; its card stays up.

        A card that was down for a moment needs up to a second to come up again.
        """
        run("bridge", "link", "set", "dev", self.bridge_port, "state", "0")

    def forward_again(self) -> None:
        """Let packets pass again after ``stop_forwarding``."""
        run("bridge", "link", "set", "dev", self.bridge_port, "state", "3")

    def fall_silent(self) -> None:
        """As ``cut_link``, but keep the neighbors' ARP entries valid.

        Otherwise the kernel reports "no route to host" after three seconds.
        """
        self.cut_link()
        bridge = self.bridge_port.partition("p")[0]
        nowhere = ["lladdr", "02:00:00:00:00:01", "dev", bridge]
        run("ip", "neigh", "replace", self.address, *nowhere, "nud", "permanent")

    def cut_path_to(self, other: ClusterHost) -> None:
        """Drop the packets to one other host, as a firewall does."""
        nowhere = ["lladdr", "02:00:00:00:00:01", "dev", "eth0", "nud", "permanent"]
        run("ip", "-n", self.namespace, "neigh", "replace", other.address, *nowhere)

    def restore_link(self) -> None:
        """Let packets pass again on this link and on the paths from this host."""
        flush = ["neigh", "flush", "dev", "eth0", "nud", "all"]
        run("ip", "-n", self.namespace, *flush)
        run("ip", "link", "set", self.bridge_port, "up")
        bridge = self.bridge_port.partition("p")[0]
        run("ip", "neigh", "flush", "to", self.address, "dev", bridge, "nud", "all")

    def limit_rate(self, rate: str) -> None:
        """Limit this host's traffic to ``rate`` (in the syntax of ``tc``) each way."""
        shaping = ["root", "tbf", "rate", rate, "burst", "256kb", "latency", "50ms"]
        run("tc", "qdisc", "replace", "dev", self.bridge_port, *shaping)
        inside = ["ip", "netns", "exec", self.namespace]
        run(*inside, "tc", "qdisc", "replace", "dev", "eth0", *shaping)

    def lose_packets(self, percent: float) -> None:
        """Drop a random share of the packets that reach this host; 0 for none.

        It needs no module for netem, which many kernels lack.
        """
        inside = ["ip", "netns", "exec", self.namespace, "tc"]
        where = ["dev", "eth0", "clsact"]
        if percent == 0:
            run(*inside, "qdisc", "del", *where)
            return
        run(*inside, "qdisc", "replace", *where)
        bound = round(percent / 100 * 2**32)
        program = [
            (_LOAD, 0, 0, _RANDOM),
            (_JUMP_IF_AT_LEAST, 0, 1, bound),
            (_RETURN, 0, 0, _PASS),
            (_RETURN, 0, 0, _DROP),
        ]
        lines = [" ".join(map(str, line)) for line in program]
        bytecode = ",".join([str(len(program)), *lines])
        what = ["bpf", "direct-action", "bytecode", bytecode]
        run(*inside, "filter", "replace", "dev", "eth0", "ingress", *what)

    def lost_packets(self) -> int:
        """Return how many packets have been dropped since ``lose_packets``."""
        inside = ["ip", "netns", "exec", self.namespace, "tc", "-s"]
        told = run(*inside, "qdisc", "show", "dev", "eth0", "clsact")
        found = re.search(r"dropped (\d+)", told)
        assert found is not None, told
        return int(found[1])


@dataclass
class Cluster:
    """A bridge with hosts ``node1``, ``node2``, ... and SSH settings to reach them."""

    folder: Path
    bridge: str
    driver_address: str
    hosts: list[ClusterHost] = field(default_factory=list)

    @property
    def ssh_config(self) -> Path:
        """SSH settings file with every host's address, key and host key."""
        return self.folder / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """Host keys of all hosts."""
        return self.folder / "known_hosts"

    @property
    def identity(self) -> Path:
        """The private key that every host accepts."""
        return self.folder / "identity"

    def processes(self) -> dict[str, dict[int, str]]:
        """Return the processes of each host that has any."""
        found = {host.name: host.processes() for host in self.hosts}
        return {name: those for name, those in found.items() if those}

    def wait_until_empty(self) -> float:
        """Wait until no host has a process left; return the seconds it took."""
        return wait_until(
            lambda: not self.processes(), lambda: f"still running: {self.processes()}"
        )


def reason_for_no_hosts() -> str | None:
    """Return why this machine cannot create namespace hosts, or None if it can."""
    if os.geteuid() != 0:
        return "needs root"
    missing = [tool for tool in _TOOLS if _tool(tool) is None]
    if missing:
        return f"not installed: {', '.join(missing)}"
    probe = f"bc{os.getpid()}p"
    try:
        run("ip", "netns", "add", probe)
    except RuntimeError as error:
        return str(error)
    finally:
        with contextlib.suppress(RuntimeError):
            run("ip", "netns", "del", probe)
    return None


def needs_hosts() -> None:
    """Skip the test with the reason where namespaces cannot be made; fail it in CI."""
    reason = reason_for_no_hosts()
    if reason is not None:
        text = f"no namespace hosts on this machine: {reason}"
        if os.environ.get("CI"):
            pytest.fail(text)
        pytest.skip(text)


def _tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/sbin")


@contextlib.contextmanager
def make_cluster(folder: Path, count: int = 3) -> Iterator[Cluster]:
    """Create ``count`` hosts and remove every trace of them at the end.

    Skips the test with the reason where hosts cannot be made; fails it in CI.
    """
    needs_hosts()
    _remove_leftovers()
    subnet = f"10.{os.getpid() >> 8 & 255}.{os.getpid() & 255}"
    cluster = Cluster(folder, f"bc{os.getpid()}", f"{subnet}.254")
    try:
        _make_bridge(cluster)
        _make_keys(cluster)
        for number in range(1, count + 1):
            _make_host(cluster, number)
        for host in cluster.hosts:
            _wait_for_sshd(host)
        _write_ssh_settings(cluster)
        yield cluster
    finally:
        _remove(cluster)


def _make_bridge(cluster: Cluster) -> None:
    bridge = cluster.bridge
    run("ip", "link", "add", bridge, "type", "bridge")
    run("ip", "addr", "add", f"{cluster.driver_address}/24", "dev", bridge)
    run("ip", "link", "set", bridge, "up")


def _make_keys(cluster: Cluster) -> None:
    for name in ("identity", "host_key"):
        file = str(cluster.folder / name)
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", file)


def _make_host(cluster: Cluster, number: int) -> None:
    """Add one host; a half-made one is removed together with the cluster."""
    subnet = cluster.driver_address.rpartition(".")[0]
    address = f"{subnet}.{number}"
    name, namespace = f"node{number}", f"{cluster.bridge}n{number}"
    port = f"{cluster.bridge}p{number}"
    inside = ["ip", "-n", namespace]
    run("ip", "netns", "add", namespace)
    peer = ["peer", "name", "eth0", "netns", namespace]
    run("ip", "link", "add", port, "type", "veth", *peer)
    run("ip", "link", "set", port, "master", cluster.bridge, "up")
    run(*inside, "addr", "add", f"{address}/24", "dev", "eth0")
    run(*inside, "link", "set", "eth0", "up")
    run(*inside, "link", "set", "lo", "up")
    sshd = _start_sshd(cluster, name, namespace, address)
    cluster.hosts.append(ClusterHost(name, address, namespace, port, sshd))


def _start_sshd(
    cluster: Cluster, name: str, namespace: str, address: str
) -> subprocess.Popen[bytes]:
    Path("/run/sshd").mkdir(exist_ok=True)
    options = {
        "AuthorizedKeysFile": cluster.folder / "identity.pub",
        "ListenAddress": address,
        "MaxStartups": "100",
        "PermitRootLogin": "yes",
        "PidFile": "none",
        "SetEnv": f"PYTHONPATH={python_path()}",
        "StrictModes": "no",
        "UseDNS": "no",
        "UsePAM": "no",
    }
    words = " ".join(f"-o {key}={value}" for key, value in options.items())
    script = (
        f"hostname {name} && mount -t tmpfs tmpfs /dev/shm && "
        f"exec {_tool('sshd')} -D -e -f /dev/null "
        f"-h {cluster.folder / 'host_key'} {words}"
    )
    unshare = ["unshare", "--uts", "--mount", "--propagation", "private"]
    with (cluster.folder / f"{name}.sshd.log").open("wb") as log:
        return subprocess.Popen(
            ["ip", "netns", "exec", namespace, *unshare, "sh", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def _wait_for_sshd(host: ClusterHost) -> None:
    def answers() -> bool:
        if host.sshd.poll() is not None:
            raise RuntimeError(f"sshd of {host.name} has ended")
        try:
            socket.create_connection((host.address, 22), timeout=1).close()
        except OSError:
            return False
        return True

    wait_until(answers, f"sshd of {host.name} does not answer")


def _write_ssh_settings(cluster: Cluster) -> None:
    public = (cluster.folder / "host_key.pub").read_text()
    lines = [f"{host.address} {public}" for host in cluster.hosts]
    cluster.known_hosts.write_text("".join(lines))
    blocks = [
        f"Host {host.name}\n  HostName {host.address}\n" for host in cluster.hosts
    ]
    common = (
        f"Host *\n  User root\n  IdentityFile {cluster.identity}\n"
        f"  UserKnownHostsFile {cluster.known_hosts}\n"
    )
    cluster.ssh_config.write_text("".join(blocks) + common)


def _remove(cluster: Cluster) -> None:
    deadline = time.monotonic() + _ENDING_S
    while cluster.processes() and time.monotonic() < deadline:
        time.sleep(0.02)
    _remove_networks(cluster.bridge)
    for host in cluster.hosts:
        host.sshd.wait(timeout=DEADLINE_S)


def _remove_networks(bridge: str) -> None:
    """Remove all that exists, also a host that was being made."""
    namespaces = [one for one in list_namespaces() if one.startswith(f"{bridge}n")]
    # A process may have started another one before it was killed.
    wait_until(
        lambda: not any(_kill_processes(name) for name in namespaces),
        f"processes of {bridge} are still running",
    )
    # Removed here because the kernel ends a namespace at an unknown later time.
    links = run("ip", "-o", "link", "show")
    for port in re.findall(rf"\d+: ({bridge}p\d+)@", links):
        run("ip", "link", "del", port)
    for name in namespaces:
        run("ip", "netns", "del", name)
    if re.search(rf"\d+: {bridge}:", links):
        run("ip", "link", "del", bridge)


def _kill_processes(namespace: str) -> bool:
    """Kill the processes of a namespace; return whether there were any."""
    pids = run("ip", "netns", "pids", namespace).split()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    return bool(pids)


def _remove_leftovers() -> None:
    """Remove networks that killed test runs have left."""
    for line in run("ip", "-o", "link", "show", "type", "bridge").splitlines():
        found = re.match(r"\d+: (bc(\d+)):", line)
        if found and not Path(f"/proc/{found[2]}").exists():
            _remove_networks(found[1])
