"""The examples name the nearest algorithm for a misspelled one."""

import argparse

import pytest

from dist_optimizer import add_arguments


def parse(*arguments):
    parser = argparse.ArgumentParser()
    add_arguments(parser, "ddp")
    return parser.parse_args(arguments).dist_optimizer


@pytest.mark.parametrize("name", ["exact_diffusion", "horovod", "ddp"])
def test_known_names(name):
    assert parse("--dist-optimizer", name) == name


@pytest.mark.parametrize(
    ("name", "nearest"),
    [("neighbour_allreduce", "neighbor_allreduce"), ("horowod", "horovod")],
)
def test_the_nearest_name_is_told(name, nearest, capsys):
    with pytest.raises(SystemExit, match=r"^2$"):
        parse("--dist-optimizer", name)
    error = capsys.readouterr().err
    assert f"unknown algorithm '{name}'; known are " in error
    assert error.endswith(f"; did you mean '{nearest}'?\n")
