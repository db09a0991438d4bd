"""The error of algorithms that take no sparse gradients."""

from __future__ import annotations


def sparse_error(
    method: str, name: str, where: str = "", *, instead: str = "gradient_allreduce"
) -> ValueError:
    """Return the error for a parameter with a sparse gradient.

    Args:
        method: The algorithm or option that needs dense gradients.
        name: Name of the parameter.
        where: The ranks that have the gradient, as " on rank 1"; "" if unknown.
        instead: An algorithm that takes sparse gradients.
    """
    return ValueError(
        f"DistributedOptimizer: {method} needs dense gradients, and that of {name!r} "
        f"is sparse{where}; pass sparse_as_dense=True, or use {instead}"
    )
