"""The errors for optional packages that are missing or too old."""

import importlib
import sys

import pytest

from bluecomm.required_package import require_package


def test_a_package_that_is_missing():
    said = (
        "bluecomm.example needs the package no_such_package, which cannot be imported "
        r"\(No module named 'no_such_package'\); "
        "install it: pip install 'no_such_package>=2.6'. Really"
    )
    with pytest.raises(ImportError, match=said):
        require_package("no_such_package", "2.6", "bluecomm.example", ". Really")


@pytest.mark.parametrize("least", ["1.0", "3.12", "4.5"])
def test_a_package_that_is_new_enough(monkeypatch, least):
    pytest.importorskip("networkx")
    monkeypatch.setattr("networkx.__version__", "4.5.1.dev2")
    require_package("networkx", least, "bluecomm.example")


def test_a_package_that_is_too_old(monkeypatch):
    monkeypatch.setattr("networkx.__version__", "4.5.1rc1")
    said = "bluecomm.example cannot use networkx 4.5.1rc1; install it: pip install"
    with pytest.raises(ImportError, match=said):
        require_package("networkx", "4.10", "bluecomm.example")


@pytest.mark.parametrize(
    ("module", "package"),
    [
        ("bluecomm.lightning", "lightning"),
        ("bluecomm.transformers", "transformers"),
        ("bluecomm.transformers", "accelerate"),
    ],
)
def test_modules_for_trainers_name_the_package_that_they_need(
    monkeypatch, module, package
):
    for name in [*sys.modules]:
        if name == module or name.startswith(f"{module}."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ImportError, match=f"{module} needs the package {package}"):
        importlib.import_module(module)
