"""Calls as the ranks that are left repeat them."""

from __future__ import annotations

import types

import pytest

from bluecomm.runtime.call import NO_MEMORY, Call
from bluecomm.runtime.epochs.coverage import is_covered, renumbered, why_impossible
from bluecomm.runtime.parameters import parameters


def call(kind):
    return Call(kind, "float32", (4,), NO_MEMORY, NO_MEMORY, (), lambda _: None)


@pytest.mark.parametrize(
    "kind", ["neighbor_allreduce", "neighbor_allgather", "pair_gossip"]
)
def test_calls_between_neighbors_are_repeated_only_through_nccl(kind):
    made = call(kind)
    assert not is_covered(made)
    made.tickets = types.SimpleNamespace()
    assert is_covered(made)
    made = call(kind)
    made.precedes_ticket = True
    assert is_covered(made)


def test_calls_with_memory_for_lost_ranks_are_not_repeated():
    made = call("allgather")
    assert not why_impossible(made, None, (4, 5, 6), [5])
    made.has_parts = True
    assert "a part for each rank" in why_impossible(made, None, (4, 5, 6), [5])
    assert not why_impossible(made, None, (4, 5, 6), [])


def test_the_own_value_takes_the_weight_of_lost_neighbors():
    given = parameters(
        self_weight=0.25,
        sources=((0, 0.25), (1, 0.25), (3, 0.25)),
        destinations=((1, 1.0), (3, 2.0)),
    )
    # Members 0 to 3 are ranks 4 to 7, of which rank 5 is lost.
    found = renumbered(call("neighbor_allreduce"), given, (4, 5, 6, 7), (4, 6, 7))
    assert found.self_weight == 0.5
    assert list(found.sources) == [(0, 0.25), (2, 0.25)]
    assert list(found.destinations) == [(2, 2.0)]
