import pytest

from bluecomm.bench.prediction.methods import METHODS
from bluecomm.optim import Algorithm, algorithm_names, register_algorithm
from bluecomm.optim.algorithms.bytegrad import ByteGrad
from bluecomm.optim.algorithms.gradient_allreduce import GradientAllreduce
from bluecomm.optim.registry import (
    get_algorithm,
    names_on_devices,
    names_that_survive_losses,
    names_that_train_apart,
    works_on_devices,
)


def test_released_names_stay():
    released = {
        *(
            "allreduce",
            "async",
            "bytegrad",
            "choco",
            "d2",
            "decentlam",
            "desloc",
            "decentralized",
            "demo",
            "diloco",
            "exact_diffusion",
            "extra",
        ),
        *("gossip_pga", "gradient_allreduce", "gradient_tracking"),
        *("hierarchical_neighbor_allreduce", "local", "local_sgd"),
        *("gasloc", "low_precision_decentralized"),
        *("momentum_tracking", "neighbor_allreduce", "noloco", "pull_get"),
        *("push_diging", "onebit_adam", "push_sum", "qadam", "win_put"),
        *("powersgd", "quorum_diloco", "sparse_loco", "zero_one_adam"),
    }
    assert released <= set(algorithm_names())
    assert algorithm_names() == sorted(algorithm_names())
    assert get_algorithm("gradient_allreduce") is GradientAllreduce


def test_each_algorithm_has_a_cost_model():
    own = {
        name
        for name in algorithm_names()
        if get_algorithm(name).__module__.startswith("bluecomm.")
    }
    assert own <= {name for name, _ in METHODS}


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="unknown algorithm 'allreduced'; known are"):
        get_algorithm("allreduced")
    with pytest.raises(ValueError, match=r"; did you mean 'neighbor_allreduce'\?"):
        get_algorithm("neigbor_allreduce")


def test_names_are_taken_once():
    register_algorithm("gradient_allreduce")(GradientAllreduce)
    with pytest.raises(ValueError, match="is taken by GradientAllreduce"):
        register_algorithm("gradient_allreduce")(Algorithm)


def test_only_algorithms_are_registered():
    with pytest.raises(TypeError, match="not a subclass"):
        register_algorithm("number")(int)


def test_algorithms_whose_ranks_must_be_equal_do_not_train_apart():
    apart = names_that_train_apart()
    neighbors = {"choco", "gasloc", "low_precision_decentralized"}
    assert neighbors.isdisjoint(names_that_survive_losses())
    assert "neighbor_allreduce" in apart
    assert {"gradient_allreduce", "diloco", "gossip_pga", "push_sum"}.isdisjoint(apart)
    assert set(apart) <= set(names_that_survive_losses())
    assert {
        "async",
        "bytegrad",
        "demo",
        "onebit_adam",
        "qadam",
        "quorum_diloco",
        "sparse_loco",
        "zero_one_adam",
    }.isdisjoint(names_that_survive_losses())


def test_an_algorithm_says_itself_that_it_works_on_devices():
    assert works_on_devices(GradientAllreduce())
    assert not works_on_devices(type("Derived", (GradientAllreduce,), {})())
    assert works_on_devices(ByteGrad())


def test_all_algorithms_work_on_devices():
    for name in algorithm_names():
        if get_algorithm(name).__module__.startswith("bluecomm."):
            assert name in names_on_devices()
