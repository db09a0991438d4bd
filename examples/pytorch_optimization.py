"""Compares how fast distributed methods reach a known optimum.

    bfrun -np 4 python examples/pytorch_optimization.py --save-plot-file methods.png
    bfrun -np 8 python examples/pytorch_optimization.py --method exact_diffusion,d2 \\
        --task linear_regression --topology HypercubeGraph

Every rank draws its data from a model of its own, so its own optimum is far from that
of all data. Neighbor averaging with a constant rate stops at a bias; the exact methods
reach the optimum. Gradients are full, without batches, so the remaining error is that
of the method.
"""

from __future__ import annotations

import argparse
import json

import networkx as nx
import torch
from torch import Tensor, nn

import bluecomm as bf
from bfrun.wording import count
from bluecomm.topology import StaticTopology
from bluecomm.topology.names import make_topology
from plots import plot_errors

# Name to the algorithm and its options. Some names are BlueFog's.
METHODS: dict[str, tuple[str, dict[str, object]]] = {
    "gradient_allreduce": ("gradient_allreduce", {}),
    "allreduce": ("allreduce", {"order": "atc"}),
    "consensus": ("neighbor_allreduce", {"order": "cta"}),
    "diffusion": ("neighbor_allreduce", {"order": "atc"}),
    "gossip_pga": ("gossip_pga", {}),
    "decentlam": ("decentlam", {"momentum": 0.5}),
    "choco": ("choco", {}),
    "low_precision_decentralized": ("low_precision_decentralized", {}),
    "exact_diffusion": ("exact_diffusion", {}),
    "d2": ("d2", {}),
    "extra": ("extra", {}),
    "gradient_tracking": ("gradient_tracking", {}),
    "diging": ("gradient_tracking", {"order": "cta"}),
    "momentum_tracking": ("momentum_tracking", {}),
    "push_diging": ("push_diging", {}),
    "decentralized": ("decentralized", {}),
    "local_sgd": ("local_sgd", {"num_steps_per_communication": 4}),
    "diloco": ("diloco", {"num_steps_per_communication": 4, "outer_momentum": 0.5}),
    "sparse_loco": ("sparse_loco", {"num_steps_per_communication": 4}),
    "gasloc": ("gasloc", {"num_steps_per_communication": 4}),
    "noloco": ("noloco", {"num_steps_per_communication": 4}),
    "local": ("local", {}),
}
WITHOUT_TOPOLOGY = {
    *("gradient_allreduce", "allreduce", "decentralized", "local_sgd", "diloco"),
    *("local", "low_precision_decentralized", "sparse_loco"),
}
TOPOLOGIES = {
    "ring": "RingGraph",
    "mesh": "MeshGrid2DGraph",
    "star": "StarGraph",
    "expo2": "ExponentialTwoGraph",
}
SAMPLES, FEATURES, RIDGE = 50, 8, 0.1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--method",
        default="all",
        metavar="NAME,...",
        help=f"'all' (default), or some of {', '.join(METHODS)}",
    )
    parser.add_argument(
        "--task",
        choices=["logistic_regression", "linear_regression"],
        default="logistic_regression",
        help="default: %(default)s",
    )
    parser.add_argument(
        "--topology",
        default="ring",
        metavar="NAME",
        help="ring (default), mesh, star, expo2, or one that `python -m "
        "bluecomm.topology --help` lists, such as BaseGraph",
    )
    parser.add_argument("--max-iter", type=int, default=300, help="default: 300")
    parser.add_argument(
        "--lr", type=float, default=0.2, help="learning rate (default: %(default)s)"
    )
    parser.add_argument("--seed", type=int, default=2020, help="default: 2020")
    parser.add_argument(
        "--save-plot-file", metavar="FILE", help="draw the error over the iterations"
    )
    parser.add_argument(
        "--plot-interactive", action="store_true", help="show the plot in a window"
    )
    parser.add_argument("--json", metavar="FILE", help="write the results to FILE")
    args = parser.parse_args()
    names = list(METHODS) if args.method == "all" else args.method.split(",")
    unknown = [name for name in names if name not in METHODS]
    if unknown:
        parser.error(f"--method: unknown {unknown}; there are: {', '.join(METHODS)}")
    args.methods = names
    return args


class Problem(nn.Module):
    """Ridge-regularised regression on the data of one rank; returns the loss."""

    def __init__(self, task: str, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        options = {"generator": generator, "dtype": torch.float64}
        truth = torch.randn(FEATURES, **options)
        self.features = torch.randn(SAMPLES, FEATURES, **options)
        noise = 0.1 * torch.randn(SAMPLES, **options)
        self.targets = self.features @ truth + noise
        if task == "logistic_regression":
            self.targets = self.targets.sign()
        self.is_logistic = task == "logistic_regression"
        self.x = nn.Parameter(torch.zeros(FEATURES, dtype=torch.float64))

    def loss(self, x: Tensor) -> Tensor:
        """Return the mean loss of this rank's samples at ``x``."""
        values = self.features @ x
        if self.is_logistic:
            fit = nn.functional.softplus(-self.targets * values).mean()
        else:
            fit = (values - self.targets).square().mean() / 2
        return fit + RIDGE / 2 * x.square().sum()

    def forward(self) -> Tensor:
        """Return the loss at the parameter."""
        return self.loss(self.x)


def find_optimum(problem: Problem) -> Tensor:
    """Return the minimum of the mean of all ranks' losses, by Newton's method."""
    x = torch.zeros(FEATURES, dtype=torch.float64)
    for _ in range(12):
        slope = torch.autograd.functional.jacobian(problem.loss, x)
        curvature = torch.autograd.functional.hessian(problem.loss, x)
        both = bf.allreduce(torch.cat([slope[None], curvature]), name="newton")
        x = x - torch.linalg.solve(both[1:], both[0])
    return x


def graph_of(topology: StaticTopology) -> nx.DiGraph:
    """Return the graph that an option names."""
    graph = nx.DiGraph()
    graph.add_nodes_from(range(topology.size))
    for rank in range(topology.size):
        targets = topology.weights(0, rank).dst_ranks
        graph.add_edges_from((rank, target) for target in targets)
    return graph


def run_method(
    args: argparse.Namespace, name: str, problem: Problem, optimum: Tensor
) -> list[float]:
    """Return this rank's distance from the optimum before each iteration.

    Raises:
        ValueError: The topology does not suit the method; the text says why.
    """
    algorithm, options = METHODS[name]
    if name not in WITHOUT_TOPOLOGY:
        topology = make_topology(
            TOPOLOGIES.get(args.topology, args.topology), bf.size(), bf.local_size()
        )
        if name != "push_diging":
            options = {**options, "topology": topology}
        elif isinstance(topology, StaticTopology):
            bf.set_topology(graph_of(topology))
        else:
            raise ValueError(f"push_diging needs a static topology, not {topology}")
    with torch.no_grad():
        problem.x.zero_()
    optimizer = bf.DistributedOptimizer(
        torch.optim.SGD(problem.parameters(), args.lr),
        problem,
        algorithm=algorithm,
        **options,
    )
    errors = []
    for _ in range(args.max_iter + 1):
        optimizer.zero_grad()
        problem().backward()
        optimizer.synchronize()
        errors.append(float((problem.x.detach() - optimum).norm() / optimum.norm()))
        optimizer.step()
    optimizer.synchronize()
    return errors


def main() -> None:
    args = parse_arguments()
    bf.init()
    problem = Problem(args.task, args.seed + bf.rank())
    optimum = find_optimum(problem)
    worst: dict[str, list[float]] = {}
    for name in args.methods:
        try:
            errors = run_method(args, name, problem, optimum)
        except ValueError as error:
            if bf.rank() == 0:
                print(f"{name:20} left out: {error}")
            continue
        own = torch.tensor(errors, dtype=torch.float64)
        worst[name] = bf.allreduce(own, op=bf.Max, name="worst error").tolist()
        if bf.rank() == 0:
            print(f"{name:20} distance of the worst rank: {worst[name][-1]:.2e}")
    if bf.rank() == 0 and args.json:
        with open(args.json, "w") as file:
            json.dump(worst, file)
    if bf.rank() == 0 and (args.save_plot_file or args.plot_interactive):
        plot_errors(
            worst,
            xlabel="iteration",
            ylabel="relative distance from the optimum",
            title=f"{args.task} on {count(bf.size(), 'rank')}, {args.topology}",
            file=args.save_plot_file,
        )


if __name__ == "__main__":
    main()
