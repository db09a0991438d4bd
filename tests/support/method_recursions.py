"""The recursions of decentralized methods as their papers write them: the oracle.

Each yields the parameters of all ranks, stacked, after every step. The algorithms
compute them in other forms. The ranks form a line, have different data and start at
different points.
"""

from __future__ import annotations

import itertools

import numpy as np

import bluecomm as bf
from tests.support.logistic import gradients

RANKS, RATE, MOMENTUM = 4, 0.4, 0.6
W = bf.mixing_matrix(bf.MeshGrid2DGraph(RANKS, (1, RANKS)))
# Columns that sum to 1 on the line, where each rank gives equal shares.
C = (W > 0) / (W > 0).sum(axis=0)
EYE, MEAN = np.eye(RANKS), np.full((RANKS, RANKS), 1 / RANKS)
MATCHINGS = bf.topology.RandomMatchings(RANKS, seed=3)


def diffusion(x):
    while True:
        x = W @ (x - RATE * gradients(x))
        yield x


def averaging(x):
    while True:
        x = MEAN @ (x - RATE * gradients(x))
        yield x


def consensus(x):
    while True:
        x = W @ x - RATE * gradients(x)
        yield x


def mean_consensus(x):
    while True:
        x = MEAN @ x - RATE * gradients(x)
        yield x


def exact_diffusion(x):
    psi = x
    while True:
        new = x - RATE * gradients(x)
        phi = new + x - psi
        psi = new
        x = (EYE + W) / 2 @ phi
        yield x


def d2(x):
    g = gradients(x)
    old, x = x, W @ (x - RATE * g)
    while True:
        yield x
        g_old, g = g, gradients(x)
        old, x = x, W @ (2 * x - old - RATE * g + RATE * g_old)


def extra(x):
    g = gradients(x)
    old, x = x, W @ x - RATE * g
    while True:
        yield x
        g_old, g = g, gradients(x)
        old, x = x, (EYE + W) @ x - (EYE + W) / 2 @ old - RATE * (g - g_old)


def diging(x):
    y = g = gradients(x)
    while True:
        x = W @ x - RATE * y
        yield x
        g_old, g = g, gradients(x)
        y = W @ y + g - g_old


def augmented(x, matrices=(W,)):
    y = g = gradients(x)
    for matrix in itertools.cycle(matrices):
        x = matrix @ (x - RATE * y)
        yield x
        g_old, g = g, gradients(x)
        y = matrix @ y + g - g_old


def push_diging(x):
    u, v = x, np.ones((RANKS, 1))
    y = g = gradients(x)
    while True:
        u, v = C @ (u - RATE * y), C @ v
        x = u / v
        yield x
        g_old, g = g, gradients(x)
        y = C @ y + g - g_old


def augmented_on_matchings(x):
    return augmented(x, [MATCHINGS.matrix(number) for number in range(1000)])


def augmented_of_all(x):
    return augmented(x, [MEAN])


def augmented_every_2(x):
    return augmented(x, [EYE, W])


def momentum_tracking(x):
    u = y = np.zeros_like(x)
    while True:
        u_old, u = u, MOMENTUM * u + gradients(x)
        y = W @ y + RATE * (u - u_old)
        x = W @ (x - y)
        yield x


def decentlam(x):
    m = np.zeros_like(x)
    while True:
        g = (x - W @ (x - RATE * gradients(x))) / RATE
        m = MOMENTUM * m + g
        x = x - RATE * m
        yield x


def gossip_pga(x):
    for step in itertools.count(1):
        x = (MEAN if step % 3 == 0 else W) @ (x - RATE * gradients(x))
        yield x


def local_sgd(x):
    for step in itertools.count(1):
        x = x - RATE * gradients(x)
        if step % 3 == 0:
            x = MEAN @ x
        yield x


def diloco(x):
    p, m = x, np.zeros_like(x)
    for step in itertools.count(1):
        x = x - RATE * gradients(x)
        if step % 3 == 0:
            outer = MEAN @ (p - x)
            m = 0.3 * m + outer
            x = p = p - 0.8 * (outer + 0.3 * m)
        yield x


def noloco(x):
    schedule = bf.topology.RandomMatchings(RANKS)
    p, m = x, np.zeros_like(x)
    for step in itertools.count(1):
        x = x - RATE * gradients(x)
        if step % 3 == 0:
            matrix = schedule.matrix(step // 3 - 1)
            m = 0.3 * m + 0.8 * matrix @ (x - p) - 0.9 * (p - matrix @ p)
            x = p = p + m
        yield x


def streaming(x, parts, every, overlap, mixing, outer=None, steps_of=(1000,) * RANKS):
    """Stream fragments, which are ``parts`` of the columns, one every few steps."""
    p, m, number = x.copy(), np.zeros_like(x), 0
    due, part, sent = None, None, None
    for step in itertools.count(1):
        active = np.array([step <= steps for steps in steps_of])[:, None]
        x = x - RATE * gradients(x) * active
        if step % every == 0:
            part = parts[number % len(parts)]
            due, sent = step + overlap, (p[:, part].copy(), x[:, part].copy())
        if step == due:
            (outer or diloco_step)(p, m, part, *sent, number)
            x[:, part] = (1 - mixing) * p[:, part] + mixing * x[:, part]
            number += 1
        yield x.copy()


def diloco_step(p, m, part, before, x, number):
    """Take an outer step of some columns, in place."""
    mean = MEAN @ (before - x)
    m[:, part] = 0.3 * m[:, part] + mean
    p[:, part] -= 0.8 * (mean + 0.3 * m[:, part])


def noloco_step(p, m, part, before, x, number):
    """Take an outer step of some columns with one partner, in place."""
    matrix = bf.topology.RandomMatchings(RANKS).matrix(number)
    pulled = 0.9 * (before - matrix @ before)
    m[:, part] = 0.3 * m[:, part] + 0.8 * matrix @ (x - before) - pulled
    p[:, part] += m[:, part]


BOTH = slice(0, 4)
# The parameters of the model.
EACH = slice(0, 1), slice(1, 4)


def streaming_diloco(x, **more):
    return streaming(x, EACH, every=2, overlap=1, mixing=0.5, **more)


def streaming_noloco(x):
    return streaming(x, EACH, every=2, overlap=1, mixing=0.5, outer=noloco_step)


def overlapping_diloco(x):
    return streaming(x, [BOTH], every=4, overlap=2, mixing=0.0)


def mixing_diloco(x):
    return streaming(x, [BOTH], every=3, overlap=0, mixing=0.25)


def gasloc(x):
    schedule = bf.topology.RandomMatchings(RANKS)
    p = y_old = x
    for step in itertools.count(1):
        x = x - RATE * gradients(x)
        if step % 3 == 0:
            laplacian = EYE - schedule.matrix(step // 3 - 1)
            y = p + 0.8 * (x - p)
            p = y - 0.9 * laplacian @ y + 0.3 * (y - y_old)
            x, y_old = p, y
        yield x
