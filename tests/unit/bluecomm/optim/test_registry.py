import pytest

from bluecomm.optim import Algorithm, algorithm_names, register_algorithm
from bluecomm.optim.algorithms import GradientAllreduce
from bluecomm.optim.registry import get_algorithm


def test_the_algorithms():
    assert algorithm_names() == [
        "allreduce",
        "d2",
        "decentlam",
        "diloco",
        "exact_diffusion",
        "extra",
        "gossip_pga",
        "gradient_allreduce",
        "gradient_tracking",
        "hierarchical_neighbor_allreduce",
        "local",
        "local_sgd",
        "momentum_tracking",
        "neighbor_allreduce",
        "noloco",
        "pull_get",
        "push_sum",
        "win_put",
    ]
    assert get_algorithm("gradient_allreduce") is GradientAllreduce


def test_unknown_names_are_errors():
    with pytest.raises(ValueError, match="unknown algorithm 'allreduced'; known are"):
        get_algorithm("allreduced")


def test_names_are_taken_once():
    register_algorithm("gradient_allreduce")(GradientAllreduce)
    with pytest.raises(ValueError, match="is taken by GradientAllreduce"):
        register_algorithm("gradient_allreduce")(Algorithm)


def test_only_algorithms_are_registered():
    with pytest.raises(TypeError, match="not a subclass"):
        register_algorithm("number")(int)
