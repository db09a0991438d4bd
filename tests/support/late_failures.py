"""Makes a call of rank 0 fail after it has succeeded there."""

from __future__ import annotations

import contextlib

import torch

import bluecomm as bf


def fail_late() -> None:
    """Let a send of rank 0 fail after it has returned, and before its next call."""
    if bf.rank() == 0:
        token = torch.zeros(1)
        told = bf.recv_nonblocking(token, 1, tag=1)
        bf.send(torch.zeros(3), 1, tag=0)
        told.wait()
    elif bf.rank() == 1:
        with contextlib.suppress(bf.MismatchError):
            bf.recv(torch.zeros(4), 0, tag=0)
        bf.send(torch.zeros(1), 0, tag=1)
