"""Checks all hosts in parallel: can a job run there?"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bfrun.addresses import Address, choose_interfaces, reachable_addresses
from bfrun.config import LaunchConfig
from bfrun.env import forwarded_environment
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher
from bfrun.nccl_net import (
    INTERFACES_NAME,
    describe_nccl_net,
    needed_files,
    rails_of_host,
)
from bfrun.output.streams import remark
from bfrun.parallel import for_each
from bfrun.plan import HostFacts
from bfrun.preflight.gpus import nccl_interfaces
from bfrun.preflight.probe_session import ProbeSession


@dataclass
class HostReport:
    """The result of the pre-flight of one host.

    Attributes:
        host: The host.
        answer: Facts about the machine from its probe; empty if it was not reached.
        problems: Problems, each with reason and remedy; empty if the host passed.
        addresses: Data addresses that every other host has reached, best first;
            empty if there is only one host.
        gpus: Facts about GPUs, CUDA and NCCL from the probe; empty unless
            ``--check`` asks for it.
        nccl_network: The network that NCCL will use; empty unless ``--check`` or
            ``--enable-net`` asks for it.
    """

    host: Host
    answer: Mapping[str, Any] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    addresses: tuple[str, ...] = ()
    gpus: Mapping[str, Any] = field(default_factory=dict)
    nccl_network: str = ""

    @property
    def facts(self) -> HostFacts:
        """The facts that planning needs."""
        return HostFacts(
            cpus=tuple(self.answer["cpus"]),
            numa=tuple(tuple(domain) for domain in self.answer["numa"]),
            gpus=tuple(self.answer["gpus"]),
            addresses=addresses_in(self.answer),
        )

    def add(self, error: LaunchError) -> None:
        """Add a problem, without the name of this host, which is printed before it."""
        text = str(error).removeprefix(f"host '{self.host.name}': ")
        self.problems.append(text)


def addresses_in(answer: Mapping[str, Any]) -> tuple[Address, ...]:
    """Return the addresses of a machine that its probe named."""
    return tuple(Address(interface, ip) for interface, ip in answer["addresses"])


def run_preflight(
    config: LaunchConfig,
    hosts: Sequence[Host],
    launcher: Launcher,
    environ: Mapping[str, str],
    *,
    tells_slow: bool = True,
) -> list[HostReport]:
    """Ask every host for its facts, compare them, and probe addresses both ways.

    Probes addresses only if every host answered, because each must reach all others.
    Leaves no process running on any host.

    Args:
        config: Settings of the job.
        hosts: Hosts of the job.
        launcher: Starts programs on the hosts.
        environ: Environment from which variables are forwarded.
        tells_slow: Whether to tell the user which hosts take long to answer.

    Returns:
        One report per host, in the same order.
    """
    reports = [HostReport(host) for host in hosts]
    flight = _Preflight(config, launcher, environ)
    try:
        tell = flight.tell_slow if tells_slow else None
        for_each(reports, flight.question, tell)
        compare_hosts(reports, config)
        if len(reports) > 1 and all(report.answer for report in reports):
            flight.probe_addresses(reports)
    except BaseException:
        flight.abort()
        raise
    flight.close()
    return reports


def compare_hosts(reports: Sequence[HostReport], config: LaunchConfig) -> None:
    """Add problems to hosts that do not fit the job, or the first that answered."""
    answered = [report for report in reports if report.answer]
    for report in answered:
        answer = report.answer
        add = report.problems.append
        if answer["system"] != "Linux":
            add(f"it runs {answer['system']}, but ranks need Linux")
        if not answer["has_cwd"]:
            add(
                f"directory {config.cwd} does not exist; start bfrun in a directory "
                "that every host has, such as one on a shared file system"
            )
        for path in answer["missing"]:
            add(
                f"file {path}, which --enable-net needs, does not exist; install "
                "bluecomm in the same folder on every host, or leave --enable-net out"
            )
        if answer["program"] is None:
            add(
                f"program '{_program(config)}' is not on its PATH; install it there, "
                "give its full path, or set PATH with -x"
            )
        elif answer["is_python"]:
            report.problems += _version_differences(answered[0], report)
            if answer["bluecomm"] is not None and not answer["native"]:
                add(
                    f"bluecomm in {answer['bluecomm_folder']} has no native extension "
                    f"for Python {answer['python']}; build it there, or install "
                    "bluecomm with this interpreter"
                )


def _version_differences(first: HostReport, report: HostReport) -> list[str]:
    problems = []
    for name in ("python", "torch", "bluecomm"):
        expected, got = first.answer[name], report.answer[name]
        if _comparable(name, expected) != _comparable(name, got):
            problems.append(
                f"{name} is {got or 'not installed'}, but on host "
                f"'{first.host.name}' it is {expected or 'not installed'}; install the "
                "same version, or choose another interpreter by its full path"
            )
    return problems


def _comparable(name: str, version: str | None) -> str | None:
    """Return the part that must agree: major.minor of Python, no build of others."""
    if version is None:
        return None
    if name == "python":
        return version.rpartition(".")[0]
    return version.partition("+")[0]


def _program(config: LaunchConfig) -> str:
    return config.command[0] if config.command else "python3"


class _Preflight:
    """The open probe sessions of one pre-flight. Owns them."""

    def __init__(
        self, config: LaunchConfig, launcher: Launcher, environ: Mapping[str, str]
    ) -> None:
        self._config = config
        self._launcher = launcher
        self._environment = {
            **forwarded_environment(environ),
            **dict(config.environment),
        }
        self._key = secrets.token_hex(32)
        self._sessions: dict[Host, ProbeSession] = {}

    def question(self, report: HostReport) -> None:
        """Fill ``report.answer``, or add the reason to ``report.problems``."""
        limit_s = self._config.start_timeout_s
        try:
            self._sessions[report.host] = ProbeSession(
                self._launcher, report.host, self._config.python, limit_s
            )
        except LaunchError as error:
            report.add(error)
            return
        report.answer = self._ask(
            report,
            "facts",
            environment=self._environment,
            command=self._config.command,
            cwd=self._config.cwd,
            files=needed_files(self._config),
        )
        answer = report.answer
        if answer and (self._config.check or self._config.enable_net):
            report.nccl_network = self._nccl_network(answer)
        if answer and self._config.check:
            report.gpus = self._ask(
                report,
                "gpus",
                environment=self._environment,
                python=answer["program"] if answer["is_python"] else None,
            )
            if not report.gpus:
                # A late answer would be taken for that of the next question.
                report.answer = {}

    def _nccl_network(self, answer: Mapping[str, Any]) -> str:
        """Describe the network that NCCL will use on a host."""
        known = addresses_in(answer)
        environment = {**rails_of_host(self._config, known), **self._environment}
        names = [address.interface for address in known]
        chosen = nccl_interfaces(names, environment.get(INTERFACES_NAME))
        interfaces = ", ".join(chosen) or "no interface"
        plugin = describe_nccl_net(self._environment)
        # The plugin takes the interfaces that NCCL's own sockets would take.
        return interfaces if plugin is None else f"{plugin} over {interfaces}"

    def tell_slow(self, reports: Sequence[HostReport]) -> None:
        """Tell the user which hosts have not answered yet."""
        names = ", ".join(report.host.name for report in reports)
        limit_s = self._config.start_timeout_s
        remark(f"bfrun: waiting for {names} (--start-timeout: {limit_s:g} s)")

    def probe_addresses(self, reports: Sequence[HostReport]) -> None:
        """Let each host dial the addresses of all others, and keep what all reached."""
        # Names tell hosts apart that have the same private address.
        names = {report.host: secrets.token_hex(8) for report in reports}
        ports: dict[Host, Mapping[str, int | str]] = {}
        candidates = {
            report.host: choose_interfaces(
                addresses_in(report.answer),
                self._config.network_interface,
            )
            for report in reports
        }

        def listen(report: HostReport) -> None:
            mine = [address.ip for address in candidates[report.host]]
            name = names[report.host]
            asked = {"addresses": mine, "name": name, "key": self._key}
            ports[report.host] = self._ask(report, "listen", **asked).get("ports", {})

        for_each(reports, listen)
        unreached: dict[Host, dict[Address, dict[str, str]]] = {
            host: {address: {} for address in mine} for host, mine in candidates.items()
        }

        def dial(report: HostReport) -> None:
            others = [
                (host, address)
                for host, mine in candidates.items()
                if host != report.host
                for address in mine
            ]
            targets = [
                (each.ip, ports[host].get(each.ip, "no listener there"), names[host])
                for host, each in others
            ]
            answer = self._ask(report, "dial", targets=targets, key=self._key)
            reasons = answer.get("reasons", ["not asked"] * len(others))
            for (host, address), reason in zip(others, reasons, strict=True):
                if reason is not None:
                    unreached[host][address][report.host.name] = reason

        for_each(reports, dial)
        for report in reports:
            host = report.host
            try:
                report.addresses = reachable_addresses(
                    host.name, candidates[host], unreached[host]
                )
            except LaunchError as error:
                report.add(error)

    def close(self) -> None:
        """Let every probe end."""
        for_each(list(self._sessions.values()), ProbeSession.close)

    def abort(self) -> None:
        """Drop every probe, even in the middle of a question."""
        for session in list(self._sessions.values()):
            session.abort()

    def _ask(self, report: HostReport, what: str, **question: Any) -> Mapping[str, Any]:
        """Return the answer of a host. If none came, add a problem and return {}."""
        try:
            limit_s = self._config.start_timeout_s
            return self._sessions[report.host].ask(what, limit_s, **question)
        except LaunchError as error:
            report.add(error)
            return {}
