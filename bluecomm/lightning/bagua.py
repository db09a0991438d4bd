"""Understands the arguments of ``BaguaStrategy``, which Lightning had before 2.0."""

from __future__ import annotations

from typing import Any

from bluecomm.ops.reduce_op import Sum

# Arguments of Bagua that change nothing here: buckets are always flat, and allreduce
# chooses by itself how it crosses machines. ``hierarchical`` does change ``bytegrad``,
# ``qadam`` and the decentralized algorithms, which have this option.
_WITHOUT_EFFECT = {"flatten", "hierarchical"}
_ARGUMENTS = {
    *("average", "peer_selection_mode", "communication_interval"),
    *_WITHOUT_EFFECT,
}
DECENTRALIZED = ("decentralized", "low_precision_decentralized")
_REMEDIES = {
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
    if algorithm not in DECENTRALIZED and not _ARGUMENTS & options.keys():
        return algorithm, options
    given = {key: options[key] for key in options.keys() & _ARGUMENTS}
    rest = {key: value for key, value in options.items() if key not in _ARGUMENTS}
    if algorithm == "async":
        more = _async(**given)
    elif algorithm in DECENTRALIZED:
        more = _decentralized(**given)
    else:
        more = _gradients(algorithm, **given)
    return algorithm, {**more, **rest}


def _decentralized(
    *, communication_interval: int = 1, flatten: bool = True, **more: Any
) -> dict[str, Any]:
    if communication_interval != 1:
        more["num_steps_per_communication"] = communication_interval
    return more


def _async(
    *, peer_selection_mode: str = "all", hierarchical: bool = True, flatten: bool = True
) -> dict[str, Any]:
    if peer_selection_mode != "all":
        raise ValueError(
            "BluecommStrategy: async averages over all ranks, so peer_selection_mode "
            f"must be 'all', got {peer_selection_mode!r}"
        )
    return {}


def _gradients(
    algorithm: Any, *, average: bool = True, **others: Any
) -> dict[str, Any]:
    wrong = others.keys() - _WITHOUT_EFFECT
    known = ("bytegrad", "gradient_allreduce", "qadam")
    if wrong or algorithm not in known:
        unknown = sorted(wrong) or sorted({*others, "average"} - wrong)
        raise ValueError(
            f"BluecommStrategy: {', '.join(unknown)} are arguments of Bagua's "
            f"algorithms, and not of {algorithm!r}; use the options of "
            "bluecomm.DistributedOptimizer"
        )
    more: dict[str, Any] = {} if average else {"op": Sum}
    if algorithm != "gradient_allreduce" and "hierarchical" in others:
        more["hierarchical"] = others["hierarchical"]
    return more
