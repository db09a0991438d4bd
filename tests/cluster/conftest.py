"""Fixtures for tests on several hosts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.cluster import Cluster, make_cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three hosts, shared by the tests of a module."""
    with make_cluster(tmp_path_factory.mktemp("cluster")) as made:
        yield made


@pytest.fixture(autouse=True)
def hosts_end_empty(cluster: Cluster) -> Iterator[None]:
    """Restore every network link, and check that the test left no process."""
    yield
    for host in cluster.hosts:
        host.restore_link()
    cluster.wait_until_empty()
