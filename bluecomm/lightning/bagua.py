"""Understands the arguments of ``BaguaStrategy``, which Lightning had before 2.0."""

from __future__ import annotations

from typing import Any

from bluecomm.ops.reduce_op import Sum

# Arguments of Bagua that change nothing here: buckets are always flat, and operations
# choose by themselves how they cross machines.
_WITHOUT_EFFECT = {"flatten", "hierarchical"}
_ARGUMENTS = {
    *("average", "peer_selection_mode", "communication_interval"),
    *_WITHOUT_EFFECT,
}
_REMEDIES = {
    "qadam": "'bytegrad' with AdamW, which sends gradients in 8 bits",
    "low_precision_decentralized": "'neighbor_allreduce', which sends full precision",
    "async": "'win_put' or 'push_sum', which do not wait for other ranks",
    "sync_interval_ms": "num_steps_per_communication, which counts steps",
    "warmup_steps": "a Trainer with 'gradient_allreduce' for the first steps",
    "track_peer_weights": "nothing: the optimizers need no such option",
}


def read_arguments(
    algorithm: Any, options: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Return algorithm and options of bluecomm for those of ``BaguaStrategy``.

    Others are returned as they are.

    Raises:
        ValueError: bluecomm has no equivalent; the text names the nearest.
    """
    for word in (algorithm, *options):
        if isinstance(word, str) and word in _REMEDIES:
            raise ValueError(
                f"BluecommStrategy: bluecomm has no equivalent of Bagua's {word!r}; "
                f"use {_REMEDIES[word]}"
            )
    if algorithm != "decentralized" and not _ARGUMENTS & options.keys():
        return algorithm, options
    given = {key: options[key] for key in options.keys() & _ARGUMENTS}
    rest = {key: value for key, value in options.items() if key not in _ARGUMENTS}
    if algorithm == "decentralized":
        algorithm, more = _decentralized(**given)
    else:
        more = _gradients(algorithm, **given)
    return algorithm, {**more, **rest}


def _decentralized(
    *,
    peer_selection_mode: str = "all",
    communication_interval: int = 1,
    hierarchical: bool = True,
    flatten: bool = True,
) -> tuple[str, dict[str, Any]]:
    more: dict[str, Any] = {}
    if communication_interval != 1:
        more["num_steps_per_communication"] = communication_interval
    if peer_selection_mode == "all":
        return "allreduce", more
    if peer_selection_mode != "shift_one":
        raise ValueError(
            "BluecommStrategy: peer_selection_mode must be 'all' or 'shift_one', got "
            f"{peer_selection_mode!r}"
        )
    more["topology"] = "one_peer"
    kind = "hierarchical_neighbor_allreduce" if hierarchical else "neighbor_allreduce"
    return kind, more


def _gradients(
    algorithm: Any, *, average: bool = True, **others: Any
) -> dict[str, Any]:
    wrong = others.keys() - _WITHOUT_EFFECT
    if wrong or algorithm not in ("bytegrad", "gradient_allreduce"):
        unknown = sorted(wrong) or sorted({*others, "average"} - wrong)
        raise ValueError(
            f"BluecommStrategy: {', '.join(unknown)} are arguments of Bagua's "
            f"algorithms, and not of {algorithm!r}; use the options of "
            "bluecomm.DistributedOptimizer"
        )
    return {} if average else {"op": Sum}
