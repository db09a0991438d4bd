"""Worlds of samplers that count their ranks themselves."""

from __future__ import annotations


class Sized:
    """A dataset of which only the length counts, with a fingerprint if given."""

    def __init__(self, length, fingerprint=None):
        self.length = length
        if fingerprint is not None:
            self.fingerprint = lambda: fingerprint

    def __len__(self):
        return self.length

    def __getitem__(self, index):
        return index


def run_steps(samplers, steps=None):
    """Return the batches of all ranks in each step, and the states after them.

    All ranks must make equally many steps, and agree on the state.
    """
    passes = [iter(sampler) for sampler in samplers]
    taken = []
    while steps is None or len(taken) < steps:
        batches = [next(each, None) for each in passes]
        if None in batches:
            assert set(map(str, batches)) == {"None"}, batches
            break
        taken.append(batches)
    states = [sampler.state_dict() for sampler in samplers]
    assert all(state == states[0] for state in states)
    return taken, states[0]


def flat(steps):
    """Return the samples of all steps."""
    return [index for batches in steps for batch in batches for index in batch]
