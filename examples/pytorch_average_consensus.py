"""Average consensus: ranks find the mean of their vectors by averaging with neighbors.

    bfrun -np 4 python examples/pytorch_average_consensus.py
    bfrun -np 4 python examples/pytorch_average_consensus.py \\
        --virtual-topology ring --save-plot-file consensus.png
    bfrun -np 4 python examples/pytorch_average_consensus.py --asynchronous-mode

Each round replaces a rank's vector by a weighted average of its own and its
in-neighbors' vectors. The error against the exact mean falls by the factor
``1 - spectral gap`` per round, or to zero after a few rounds with a dynamic
exponential graph on a power of two.

With ``--asynchronous-mode`` no rank waits for another: each one pushes shares of its
vector, and of a scalar p, into its neighbors' windows, and collects the shares in its
own (push-sum). The sums over all ranks stay the same, so vector / p goes to the mean.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch

import bluecomm as bf
from plots import plot_errors

TOPOLOGIES: dict[str, Callable[[int], object]] = {
    "expo2": bf.ExponentialTwoGraph,
    "expo3": lambda n: bf.ExponentialGraph(n, base=3),
    "expo4": lambda n: bf.ExponentialGraph(n, base=4),
    "ring": bf.RingGraph,
    "mesh": bf.MeshGrid2DGraph,
    "star": bf.StarGraph,
    "full": bf.FullyConnectedGraph,
}


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--data-size", type=int, default=100_000, help="elements (default: 100000)"
    )
    parser.add_argument("--max-iters", type=int, default=200, help="default: 200")
    parser.add_argument(
        "--virtual-topology", choices=TOPOLOGIES, default="expo2", help="default: expo2"
    )
    parser.add_argument(
        "--enable-dynamic-topology",
        action="store_true",
        help="average with one neighbor at a time",
    )
    parser.add_argument(
        "--asynchronous-mode",
        action="store_true",
        help="push-sum through windows, each rank at its own pace",
    )
    parser.add_argument(
        "--save-plot-file", metavar="FILE", help="draw the error over the rounds"
    )
    parser.add_argument(
        "--plot-interactive", action="store_true", help="show the plot in a window"
    )
    parser.add_argument(
        "--no-cuda",
        action="store_true",
        help="accepted for BlueFog's command lines: tensors are on the CPU anyway",
    )
    parser.add_argument("--seed", type=int, default=2020, help="default: 2020")
    return parser.parse_args()


def relative_error(x: torch.Tensor, mean: torch.Tensor) -> float:
    return float((x - mean).norm() / mean.norm())


def draw(args: argparse.Namespace) -> tuple[torch.Tensor, torch.Tensor]:
    """Return this rank's random vector and the mean of all vectors."""
    generator = torch.Generator().manual_seed(args.seed + bf.rank())
    x = torch.randn(args.data_size, dtype=torch.float64, generator=generator)
    return x, bf.allreduce(x, average=True)


def run(args: argparse.Namespace) -> list[float]:
    """Return the relative error of this rank's vector after each round."""
    x, mean = draw(args)
    errors = [relative_error(x, mean)]
    peers = bf.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())
    for _ in range(args.max_iters):
        if args.enable_dynamic_topology and bf.size() > 1:
            send, receive = next(peers)
            weight = 1 / (len(receive) + 1)
            x = bf.neighbor_allreduce(
                x,
                name="x",
                self_weight=weight,
                src_weights=dict.fromkeys(receive, weight),
                dst_weights=send,
                enable_topo_check=False,
            )
        else:
            x = bf.neighbor_allreduce(x, name="x")
        errors.append(relative_error(x, mean))
    return errors


def run_asynchronously(args: argparse.Namespace) -> list[float]:
    """Do the same by push-sum; also print the sums, which must not change."""
    x, mean = draw(args)
    errors = [relative_error(x, mean)]
    peers = bf.GetDynamicOnePeerSendRecvRanks(bf.load_topology(), bf.rank())
    bf.turn_on_win_ops_with_associated_p()
    bf.win_create(x, "x", zero_init=True)
    for _ in range(args.max_iters):
        targets = bf.out_neighbor_ranks()
        if args.enable_dynamic_topology and bf.size() > 1:
            targets, _ = next(peers)
        share = 1 / (len(targets) + 1)
        bf.win_accumulate(x, "x", share, dict.fromkeys(targets, share))
        bf.win_update_then_collect("x")
        errors.append(relative_error(x / bf.win_associated_p("x"), mean))
    # Collect the shares that ranks ahead of this one have left.
    bf.barrier()
    bf.win_update_then_collect("x")
    p = bf.win_associated_p("x")
    estimate = x / p
    errors.append(relative_error(estimate, mean))
    kept = relative_error(bf.allreduce(x, average=True), mean)
    mean_p = float(bf.allreduce(torch.tensor([p], dtype=torch.float64))[0])
    print(
        f"[{bf.rank()}] p: {p:.6f}, mean over all ranks: {mean_p:.12f} (should be 1); "
        f"the mean of all vectors has moved by {kept:.1e} (should be 0)"
    )
    bf.win_free("x")
    bf.turn_off_win_ops_with_associated_p()
    return errors


def main() -> None:
    args = parse_arguments()
    bf.init()
    bf.set_topology(TOPOLOGIES[args.virtual_topology](bf.size()))
    errors = (run_asynchronously if args.asynchronous_mode else run)(args)
    print(f"[{bf.rank()}] relative error at last iteration: {errors[-1]:.3e}")
    everyone = bf.allgather_object(errors)
    if (args.save_plot_file or args.plot_interactive) and bf.rank() == 0:
        style = "one peer" if args.enable_dynamic_topology else "static"
        if args.asynchronous_mode:
            style += ", asynchronous"
        plot_errors(
            {f"rank {rank}": own for rank, own in enumerate(everyone)},
            xlabel="round",
            ylabel="relative error against the mean",
            title=f"{args.virtual_topology}, {style}",
            file=args.save_plot_file,
        )


if __name__ == "__main__":
    main()
