"""Checks hosts that are to take part in a job that runs already."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence

from bfrun.config import LaunchConfig
from bfrun.driver.host_arrivals import SurveyedHost
from bfrun.errors import LaunchError
from bfrun.hosts import Host
from bfrun.launch.base import Launcher
from bfrun.launch.per_host import launcher_for
from bfrun.plan import HostPlan
from bfrun.preflight.preflight import HostReport, run_preflight
from bfrun.preflight.this_machine import local_addresses, local_facts

Found = dict[Host, SurveyedHost | LaunchError]


class _NoAnswer(LaunchError):
    """A host has not answered, the new one or one that takes part.

    It is not asked again at once.
    """


class _KeptOut(LaunchError):
    """A new host has no problem of its own, but the group cannot take part."""


class HostSurvey:
    """Asks new hosts as the pre-flight does at the start of a job.

    Probes run on the hosts that take part, too, because all hosts must reach each
    other. They have connections of their own, so an agent never depends on a probe.

    Args:
        environ: Environment from which variables are forwarded.
    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._lock = threading.Lock()
        self._launcher: Launcher | None = None
        self._is_aborted = False
        # Whether each host that takes part is this machine.
        self._is_here: dict[Host, bool] = {}

    def ask(
        self, config: LaunchConfig, known: Sequence[HostPlan], new: Sequence[Host]
    ) -> Found:
        """Return what is known of new hosts; see ``Survey`` in the driver."""
        found = self._ask_together(config, known, new)
        if len(new) == 1 or not _has_error(found):
            return found
        # A host that fails may keep out others that could take part without it.
        good = [host for host in new if not _is_at_fault(found[host])]
        if 0 < len(good) < len(new):
            rest = self._ask_together(config, known, good)
            found |= rest
            if not _has_error(rest):
                return found
        known = list(known)
        for host in new:
            if isinstance(found[host], _NoAnswer):
                continue
            found |= self._ask_together(config, known, [host])
            answer = found[host]
            if isinstance(answer, SurveyedHost):
                addresses = answer.addresses
                known.append(HostPlan(len(known), host, (), addresses))
        return found

    def abort(self) -> None:
        """Drop the connections to all hosts, where the probes then end."""
        with self._lock:
            self._is_aborted = True
            launcher = self._launcher
        if launcher is not None:
            launcher.close()

    def _ask_together(
        self, config: LaunchConfig, known: Sequence[HostPlan], new: Sequence[Host]
    ) -> Found:
        """Ask new hosts as a group, which fails if two of its hosts do not fit."""
        hosts = [*(plan.host for plan in known), *new]
        launcher: Launcher | None = None
        try:
            is_here = self._is_here
            known_here = {
                plan.host: is_here[plan.host] for plan in known if plan.host in is_here
            }
            launcher = launcher_for(config, hosts, known_here)
            self._is_here = {plan.host: launcher.is_local(plan.host) for plan in known}
            with self._lock:
                if self._is_aborted:
                    raise LaunchError("the job ends")
                self._launcher = launcher
            if all(launcher.is_local(host) for host in hosts):
                here = SurveyedHost(local_facts(), local_addresses(config))
                return dict.fromkeys(new, here)
            reports = run_preflight(
                config, hosts, launcher, self._environ, tells_slow=False
            )
        except LaunchError as error:
            return dict.fromkeys(new, error)
        finally:
            if launcher is not None:
                launcher.close()
        obstacle = _obstacle(known, reports)
        all_answer = all(report.answer for report in reports[: len(known)])
        return {
            report.host: _judge(report, obstacle, all_answer=all_answer)
            for report in reports[len(known) :]
        }


def _has_error(found: Found) -> bool:
    return any(isinstance(answer, LaunchError) for answer in found.values())


def _is_at_fault(answer: SurveyedHost | LaunchError) -> bool:
    return isinstance(answer, LaunchError) and not isinstance(answer, _KeptOut)


def _judge(
    report: HostReport, obstacle: str, *, all_answer: bool
) -> SurveyedHost | LaunchError:
    why = "; ".join(report.problems) or obstacle
    if not report.answer or not all_answer:
        return _NoAnswer(why)
    if report.problems:
        return LaunchError(why)
    return _KeptOut(why) if why else SurveyedHost(report.facts, report.addresses)


def _obstacle(known: Sequence[HostPlan], reports: Sequence[HostReport]) -> str:
    """Return why the hosts that take part cannot take in the new ones, or ""."""
    for plan, report in zip(known, reports, strict=False):
        name = plan.host.name
        if report.problems:
            return f"host '{name}', which takes part: {report.problems[0]}"
        if not plan.addresses:
            return (
                f"the ranks on host '{name}' listen only at 127.0.0.1, because that "
                "host had no address for data when the job began; give it one that "
                "--network-interface allows, and start the job again"
            )
        if not set(plan.addresses) & set(report.addresses):
            listening = ", ".join(plan.addresses)
            return (
                f"it does not reach the ranks on host '{name}', which listen at "
                f"{listening}; open the firewall between the hosts, or start the job "
                "again with --network-interface"
            )
    return ""
