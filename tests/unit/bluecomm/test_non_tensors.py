"""Each public operation raises ``TypeError`` for what is not a tensor."""

import inspect

import pytest
import torch

import bluecomm as bf

NAMES = ("tensor", "tensors", "params")
# Arguments that some operations need besides their tensors.
OTHERS = {
    "codec": "min_max_uint8",
    "root_rank": 0,
    "src_rank": 0,
    "dst_rank": 0,
    "src": 0,
    "dst": 0,
    "target_rank": 0,
    "name": "non-tensors",
}
WINDOW = "non-tensors"


def _operations():
    """Return the public functions that take tensors, by name, with that argument."""
    found = {}
    for name in bf.__all__:
        function = getattr(bf, name)
        if inspect.isfunction(function):
            parameters = inspect.signature(function).parameters
            if given := [one for one in NAMES if one in parameters]:
                found[name] = given[0]
    return found


OPERATIONS = _operations()


@pytest.fixture(autouse=True, scope="module")
def _world():
    bf.init()
    bf.win_create(torch.zeros(2), WINDOW)
    yield
    bf.shutdown()


def test_the_operations_are_found():
    assert {"alltoall", "pair_gossip", "win_put", "grouped_allreduce_"} <= {*OPERATIONS}
    assert len(OPERATIONS) > 50


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_names_itself_and_what_it_got(name):
    function = getattr(bf, name)
    parameters = inspect.signature(function).parameters.values()
    others = {
        one.name: OTHERS[one.name]
        for one in parameters
        if one.default is one.empty and one.name in OTHERS
    }
    wrong = [[3.0], 3.0, object()]
    if not name.startswith("scatter"):  # only the root passes tensors
        wrong.append(None)
    stem = name.removeprefix("neighbor_") if "win_" in name else name
    stem = stem.removesuffix("_").removesuffix("_nonblocking").removesuffix("_async")
    for one in wrong:
        with pytest.raises(
            TypeError, match=rf"^{stem}.*: .*(float|list|object|NoneType)"
        ):
            function(**{OPERATIONS[name]: one, **others})
