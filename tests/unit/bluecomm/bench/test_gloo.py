"""The choice of gloo's network interface."""

from __future__ import annotations

import pytest

from bluecomm.bench.gloo import interface_of

INTERFACES = [["eth0", "10.0.0.1"], ["eth1", "10.1.0.1"], ["eth1", "fd00::1"]]


@pytest.mark.parametrize(
    ("address", "interface"),
    [
        ("10.1.0.1", "eth1"),
        ("fd00::1", "eth1"),
        ("127.0.0.1", "lo"),
        ("10.2.0.1", None),
    ],
)
def test_gloo_uses_the_interface_of_the_address(
    address: str, interface: str | None
) -> None:
    assert interface_of(address, INTERFACES) == interface
