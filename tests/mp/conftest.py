"""With ``--over-fakegpu`` ranks have fake GPUs, and only files of a list are run."""

import pytest

from tests.support.fakegpu.of_the_host import FILES, NOT_RUN, reasons
from tests.support.fakegpu.over import over_fakegpu
from tests.support.one_thread import one_thread

__all__ = ["one_thread"]  # a fixture of all tests here


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    transport = item.config.getoption("--over-fakegpu")
    if transport is None:
        return (yield)
    with over_fakegpu(transport, item.config.getoption("--fakegpu-seed")):
        return (yield)


def pytest_collection_modifyitems(config, items):
    transport = config.getoption("--over-fakegpu")
    if transport is None:
        return
    why = reasons(transport)
    kept, left = [], []
    for item in items:
        names = [f"{item.path.name}::{name}" for name in (item.name, item.originalname)]
        is_run = item.path.stem in FILES and NOT_RUN.keys().isdisjoint(names)
        (kept if is_run else left).append(item)
        for reason in {why[name] for name in names if name in why}:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=True))
    config.hook.pytest_deselected(items=left)
    items[:] = kept
