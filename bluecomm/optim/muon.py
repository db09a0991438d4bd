"""Divides the parameters of a model between Muon and another optimizer."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn


def muon_groups(
    model: nn.Module, head: nn.Module | Iterable[nn.Module] | None = None
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Return the parameters for Muon, and the others.

    Muon is for the matrices of hidden layers. The others are embeddings, the output
    layer, biases, gains, and weights of convolutions, for which AdamW is usual. A
    matrix that is also that of an embedding or of the output layer (tied weights)
    belongs to the others.

    Args:
        model: The model. Parameters that need no gradient are left out.
        head: The output layer, or several. Default: of the modules with a matrix of
            their own, the one that was registered last.

    Returns:
        Two lists, without duplicates, in the order of ``model.parameters()``. One may
        be empty.

    Raises:
        ValueError: ``head`` is not a part of the model.

    Source:
        Jordan et al., "Muon: An optimizer for hidden layers in neural networks", 2024.
        Therien et al., "MuLoCo: Muon is a practical inner optimizer for DiLoCo", 2025,
        arXiv:2505.23725.
    """
    apart = {
        parameter
        for module in [*_heads(model, head), *_embeddings(model)]
        for parameter in module.parameters()
    }
    hidden: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for parameter in model.parameters():
        if parameter.requires_grad:
            is_hidden = _is_matrix(parameter) and parameter not in apart
            (hidden if is_hidden else others).append(parameter)
    return hidden, others


def _heads(
    model: nn.Module, head: nn.Module | Iterable[nn.Module] | None
) -> list[nn.Module]:
    if head is None:
        with_matrices = [
            module
            for module in model.modules()
            if any(_is_matrix(own) for own in module.parameters(recurse=False))
        ]
        return with_matrices[-1:]
    heads = [head] if isinstance(head, nn.Module) else list(head)
    parts = set(model.modules())
    for part in heads:
        if part not in parts:
            raise ValueError(
                f"muon_groups: the head {type(part).__name__} is not a part of the "
                "model; pass one of its modules, such as model.lm_head"
            )
    return heads


def _embeddings(model: nn.Module) -> list[nn.Module]:
    kinds = (nn.Embedding, nn.EmbeddingBag)
    return [module for module in model.modules() if isinstance(module, kinds)]


def _is_matrix(parameter: torch.Tensor) -> bool:
    return parameter.ndim == 2 and parameter.is_floating_point()
