"""Decides which ranks run on which host: a pure function of settings and hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bfrun.addresses import Address
from bfrun.config import LaunchConfig
from bfrun.env import Placement, rank_environment
from bfrun.errors import LaunchError
from bfrun.gpu_shares import gpus_of_rank
from bfrun.hosts import LOCALHOST, Host
from bfrun.nccl_net import rails_of_host
from bfrun.wording import count


@dataclass(frozen=True)
class HostFacts:
    """Cores, GPUs and addresses of a machine, as it reports them.

    Attributes:
        cpus: Numbers of the CPUs that ranks may use.
        numa: The same CPUs, grouped by NUMA domain.
        gpus: Identifiers of the visible GPUs, as ``CUDA_VISIBLE_DEVICES`` takes them.
        addresses: Its addresses, without loopback and link-local ones; empty if no
            other host takes part.
    """

    cpus: tuple[int, ...]
    numa: tuple[tuple[int, ...], ...] = ()
    gpus: tuple[str, ...] = ()
    addresses: tuple[Address, ...] = ()


@dataclass(frozen=True)
class ProcessSpec:
    """The command of one rank, and its host, variables and CPUs.

    Attributes:
        placement: Its rank, local rank and machine rank, and the sizes.
        host_index: Position of its host in ``LaunchPlan.hosts``.
        command: Program and arguments.
        cwd: Working directory.
        environment: Variables to add to the agent's own, after the agent has removed
            those of other launchers (``env.is_foreign``). Some are known only when
            agents run: ``BLUECOMM_AGENT_SOCKET``, ``BLUECOMM_JOB``, and ``MASTER_ADDR``
            and ``MASTER_PORT`` unless the user gave them.
        cpus: CPUs that it is bound to; if empty, it is not bound.
    """

    placement: Placement
    host_index: int
    command: tuple[str, ...]
    cwd: str
    environment: Mapping[str, str]
    cpus: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """Its rank in the world."""
        return self.placement.rank


@dataclass(frozen=True)
class HostPlan:
    """One host and the ranks that its agent starts.

    Attributes:
        index: Position in ``LaunchPlan.hosts``.
        host: The host.
        processes: Its ranks in order, at least one unless the job may grow.
        addresses: Addresses at which other hosts reach its ranks, best first; empty
            if the job runs on one machine, which needs only loopback.
        slots: Number of ranks that share its cores and GPUs; more than it has at the
            start if the job may grow.
        facts: Its cores and GPUs, if they are known.
    """

    index: int
    host: Host
    processes: tuple[ProcessSpec, ...]
    addresses: tuple[str, ...] = ()
    slots: int = 0
    facts: HostFacts | None = None


@dataclass(frozen=True)
class LaunchPlan:
    """Every process of a job.

    Attributes:
        hosts: Hosts with at least one rank, in the order of their ranks; then, if the
            job may grow, hosts for more ranks.
        notes: Remarks for the user, such as more ranks than cores.
    """

    hosts: tuple[HostPlan, ...]
    notes: tuple[str, ...] = ()

    @property
    def processes(self) -> tuple[ProcessSpec, ...]:
        """All processes in rank order."""
        return tuple(spec for host in self.hosts for spec in host.processes)

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return len(self.processes)

    @property
    def host_of_rank(self) -> dict[int, str]:
        """Name of each rank's host."""
        return {
            spec.rank: host.host.name for host in self.hosts for spec in host.processes
        }


def make_plan(
    config: LaunchConfig,
    facts: Mapping[Host, HostFacts],
    environ: Mapping[str, str],
) -> LaunchPlan:
    """Return the ranks of each host, with their environment and CPUs.

    Ranks fill the slots of the first host, then of the second, and so on. With
    ``--oversubscribe``, ranks beyond all slots go to one host after another in turn.

    Args:
        config: The user's settings.
        facts: Cores and GPUs of hosts; needed if slots are not given, and for
            ``OMP_NUM_THREADS``, ``--bind-to`` and ``--gpus-per-rank``.
        environ: The environment to forward from, usually ``os.environ``.

    Raises:
        LaunchError: The number of ranks is not known, there are too few slots or
            GPUs, or ``--only-rank`` names a rank that does not exist.
    """
    notes: list[str] = []
    hosts = config.hosts or (LOCALHOST,)
    if config.hosts:
        slots = [_slots(host, facts) for host in hosts]
        counts = _fill(config, hosts, slots)
    else:
        slots = counts = [_ranks_here(config, facts, notes)]
    # A job that may grow has an agent on each host that it can fill.
    room = _room(config, slots) if config.may_grow else counts
    _check_only_rank(config.only_rank, sum(room))
    used = [each for each in zip(hosts, counts, room, strict=True) if each[2]]
    machines = _machine_sizes([ranks for _, ranks, _ in used], config.ranks_per_machine)
    placements = _placements(machines)
    plans = []
    for index, (host, ranks, shares) in enumerate(used):
        mine, placements = placements[:ranks], placements[ranks:]
        plan = HostPlan(index, host, (), slots=shares, facts=facts.get(host))
        processes = [
            plan_process(config, plan, position, placement, environ)
            for position, placement in enumerate(mine)
        ]
        plans.append(replace(plan, processes=tuple(processes)))
    return LaunchPlan(tuple(plans), tuple(notes))


def _room(config: LaunchConfig, slots: Sequence[int]) -> list[int]:
    """Return how many ranks each host may have in a job that grows."""
    left = sum(slots) if config.max_np is None else config.max_np
    room = []
    for available in slots:
        room.append(min(available, left))
        left -= room[-1]
    return room


def with_addresses(
    plan: LaunchPlan, addresses: Mapping[Host, tuple[str, ...]]
) -> LaunchPlan:
    """Return the plan with the data addresses that the pre-flight chose."""
    hosts = tuple(replace(each, addresses=addresses[each.host]) for each in plan.hosts)
    return replace(plan, hosts=hosts)


def _ranks_here(
    config: LaunchConfig, facts: Mapping[Host, HostFacts], notes: list[str]
) -> int:
    wanted = config.world_size
    if wanted is None:
        raise LaunchError(
            "the number of ranks is not known; give -np N, or hosts with -H "
            "host:slots,... or --hostfile F"
        )
    known = facts.get(LOCALHOST)
    if known is not None and wanted > len(known.cpus):
        notes.append(
            f"{wanted} ranks share {count(len(known.cpus), 'core')} of this machine, "
            "so they take turns"
        )
    return wanted


def _check_only_rank(ranks: Sequence[int], world_size: int) -> None:
    beyond = [rank for rank in ranks if rank >= world_size]
    if beyond:
        raise LaunchError(
            f"--only-rank {beyond[0]}: the job has {count(world_size, 'rank')}, "
            "numbered from 0"
        )


def _slots(host: Host, facts: Mapping[Host, HostFacts]) -> int:
    if host.slots is not None:
        return host.slots
    known = facts.get(host)
    if known is None:
        raise LaunchError(
            f"host '{host}' is given without slots, and its GPUs and cores are not "
            f"known; write {host}:SLOTS"
        )
    return len(known.gpus) or len(known.cpus)


def _fill(
    config: LaunchConfig, hosts: Sequence[Host], slots: Sequence[int]
) -> list[int]:
    wanted = config.world_size
    if wanted is None:
        wanted = min(sum(slots), config.max_np or sum(slots))
    if wanted > sum(slots) and not config.oversubscribe:
        pairs = zip(hosts, slots, strict=True)
        table = ", ".join(f"{host.name}: {each}" for host, each in pairs)
        raise LaunchError(
            f"-np {wanted}: the hosts have {count(sum(slots), 'slot')} ({table}); "
            "lower -np, give more slots, or allow more ranks than slots with "
            "--oversubscribe"
        )
    counts = []
    left = wanted
    for available in slots:
        counts.append(min(available, left))
        left -= counts[-1]
    for extra in range(left):
        counts[extra % len(counts)] += 1
    return counts


def _machine_sizes(counts: Sequence[int], cut: int | None) -> list[int]:
    """Split each host's rank count into machines of at most ``cut`` ranks."""
    sizes = []
    for ranks in counts:
        step = cut or ranks or 1
        sizes += [min(step, ranks - first) for first in range(0, ranks, step)]
    return sizes


def _placements(machine_sizes: Sequence[int]) -> list[Placement]:
    world_size = sum(machine_sizes)
    placements: list[Placement] = []
    for machine_rank, local_size in enumerate(machine_sizes):
        for local_rank in range(local_size):
            placements.append(
                Placement(
                    rank=len(placements),
                    world_size=world_size,
                    local_rank=local_rank,
                    local_world_size=local_size,
                    machine_rank=machine_rank,
                    machine_world_size=len(machine_sizes),
                )
            )
    return placements


def plan_process(
    config: LaunchConfig,
    host: HostPlan,
    position: int,
    placement: Placement,
    environ: Mapping[str, str],
) -> ProcessSpec:
    """Return the process of one rank.

    Args:
        config: The user's settings.
        host: Its host, of which ``processes`` does not count.
        position: Number of its slot on the host, which decides its cores and GPUs.
        placement: Its numbers.
        environ: As for ``make_plan``.

    Raises:
        LaunchError: The host has too few GPUs, or its cores are needed but not known,
            or ``--network-interface`` is not well formed.
    """
    slots, facts = host.slots, host.facts
    environment = rank_environment(config, placement, environ)
    if facts is not None:
        threads = max(1, len(facts.cpus) // slots)
        environment.setdefault("OMP_NUM_THREADS", str(threads))
        environment = {**rails_of_host(config, facts.addresses), **environment}
    if config.gpus_per_rank is not None:
        gpus = _gpus(config, host.host, facts, position, slots)
        environment["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return ProcessSpec(
        placement=placement,
        host_index=host.index,
        command=config.command,
        cwd=config.cwd,
        environment=environment,
        cpus=_bind(config, host.host, facts, position, slots),
    )


def _gpus(
    config: LaunchConfig, host: Host, facts: HostFacts | None, position: int, ranks: int
) -> tuple[str, ...]:
    have = facts.gpus if facts is not None else ()
    each = config.gpus_per_rank or 0
    return gpus_of_rank(host.name, have, each, position, ranks, config.share_gpus)


def _bind(
    config: LaunchConfig, host: Host, facts: HostFacts | None, position: int, ranks: int
) -> tuple[int, ...]:
    """Return the CPUs of one rank: its share of cores, or one NUMA domain."""
    if config.bind_to == "none":
        return ()
    if facts is None:
        raise LaunchError(f"--bind-to: the cores of host '{host.name}' are not known")
    if config.bind_to == "numa":
        domains = facts.numa or (facts.cpus,)
        return domains[position * len(domains) // max(ranks, len(domains))]
    share = len(facts.cpus) // ranks
    if share == 0:
        return (facts.cpus[position % len(facts.cpus)],)
    return facts.cpus[position * share : (position + 1) * share]
