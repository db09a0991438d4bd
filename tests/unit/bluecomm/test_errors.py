"""The hierarchy of errors, their texts, and their attributes."""

import pickle

import pytest

from bluecomm import errors

FACTS = {
    "operation": "neighbor_allreduce",
    "name": "conv1.weight",
    "rank": 3,
    "peers": (5, 9),
    "expected": "4.0 MiB",
    "got": "1.5 MiB",
    "timeout_s": 30.0,
    "remedy": "Look at rank 5.",
}
CLASSES = [
    errors.BluecommError,
    errors.NotInitializedError,
    errors.MismatchError,
    errors.HorovodInternalError,
    errors.PeerLostError,
    errors.CommunicationTimeout,
    errors.ShutdownError,
    errors.SuspendedError,
]


@pytest.mark.parametrize(
    ("error_class", "bases"),
    [
        (errors.NotInitializedError, (ValueError,)),
        (errors.MismatchError, (RuntimeError, ValueError)),
        (errors.HorovodInternalError, (RuntimeError,)),
        (
            errors.PeerLostError,
            (RuntimeError, ConnectionError, errors.HorovodInternalError),
        ),
        (
            errors.CommunicationTimeout,
            (RuntimeError, TimeoutError, errors.HorovodInternalError),
        ),
        (errors.ShutdownError, (RuntimeError,)),
        (errors.SuspendedError, (RuntimeError,)),
    ],
)
def test_each_class_can_be_caught_as_the_builtin_it_stands_for(error_class, bases):
    for base in (errors.BluecommError, *bases):
        with pytest.raises(base, match="what happened"):
            raise error_class("what happened")


def test_retries_see_only_lost_and_silent_ranks():
    retried = {c for c in CLASSES if issubclass(c, errors.HorovodInternalError)}
    assert retried == {
        errors.HorovodInternalError,
        errors.PeerLostError,
        errors.CommunicationTimeout,
    }


@pytest.mark.parametrize("error_class", CLASSES)
def test_facts_are_attributes_and_survive_pickling(error_class):
    error = error_class("text", **FACTS)
    for copy in (error, pickle.loads(pickle.dumps(error))):
        assert type(copy) is error_class
        assert str(copy) == "text"
        assert {fact: getattr(copy, fact) for fact in FACTS} == FACTS


@pytest.mark.parametrize("error_class", CLASSES)
def test_describe_renders_the_facts_once(error_class):
    error = error_class.describe("no data from ranks 5, 9 within 30.0 s", **FACTS)
    assert type(error) is error_class
    assert str(error) == (
        "neighbor_allreduce 'conv1.weight' on rank 3: no data from ranks 5, 9 within "
        "30.0 s (expected 4.0 MiB, got 1.5 MiB). Look at rank 5."
    )
    assert {fact: getattr(error, fact) for fact in FACTS} == FACTS


def test_describe_omits_missing_facts():
    error = errors.ShutdownError.describe(
        "bluecomm has been shut down", operation="rank"
    )
    assert str(error) == "rank: bluecomm has been shut down"
    assert error.name is None
    assert error.peers == ()


def test_describe_takes_expected_without_got():
    error = errors.MismatchError.describe(
        "dtypes differ", operation="allreduce", expected="float32"
    )
    assert str(error) == "allreduce: dtypes differ (expected float32)"
