"""Logistic regression on ranks whose data differ, and its global optimum.

Loss of rank ``i``: ``mean_k log(1 + exp(-b_k (a_k . x))) + rho/2 |x|**2``. Its
optimum is far from that of the mean of all ranks' losses, so neighbor averaging with a
constant rate converges to a biased point.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

SAMPLES, FEATURES, RHO = 20, 4, 0.2


def data_of(rank):
    """Return features and labels of a rank."""
    generator = np.random.default_rng(rank)
    truth = generator.standard_normal(FEATURES) * 3
    features = generator.standard_normal((SAMPLES, FEATURES)) * 0.9
    return features, np.where(features @ truth > 0, 1.0, -1.0)


def gradient(rank, x):
    """Return the gradient of a rank's loss."""
    features, labels = data_of(rank)
    margins = labels * (features @ x)
    return -(features.T @ (labels / (1 + np.exp(margins)))) / SAMPLES + RHO * x


def gradients(stacked):
    """Return the gradients of all ranks at their own points, stacked."""
    return np.stack([gradient(rank, x) for rank, x in enumerate(stacked)])


def optimum(ranks):
    """Return the minimum of the mean of the losses, by Newton's method."""
    x = np.zeros(FEATURES)
    for _ in range(30):
        hessian = RHO * np.eye(FEATURES) * ranks
        for rank in range(ranks):
            features, labels = data_of(rank)
            share = 1 / (1 + np.exp(labels * (features @ x)))
            hessian += (features.T * (share * (1 - share))) @ features / SAMPLES
        slope = sum(gradient(rank, x) for rank in range(ranks))
        x = x - np.linalg.solve(hessian, slope)
    assert np.abs(slope).max() < 1e-12
    return x


def start_of(rank):
    """Return a rank's starting point."""
    return np.random.default_rng(100 + rank).standard_normal(FEATURES)


class Logistic(nn.Module):
    """A model with two parameters that make up ``x``."""

    def __init__(self, x):
        super().__init__()
        values = torch.as_tensor(x)
        self.first = nn.Parameter(values[:1].clone())
        self.rest = nn.Parameter(values[1:].clone())

    @property
    def vector(self):
        """The vector ``x``."""
        return torch.cat([self.first, self.rest])

    def forward(self, features, labels):
        x = self.vector
        margins = labels * (features @ x)
        return nn.functional.softplus(-margins).mean() + RHO / 2 * x.square().sum()
