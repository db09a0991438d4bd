"""The registration of the backend when torch is imported, or finds its name."""

import json
import logging
import os
import subprocess
import sys

import pytest
import torch
import torch.distributed as dist

import bluecomm_autoload
from tests.support.deadlines import DEADLINE_S
from tests.support.entry_points import install_entry_points
from tests.support.launch import ROOT

# Prints which modules of bluecomm `import torch` has loaded.
LOOK = """
import json, sys
import torch
import torch.distributed as dist
ours = {name for name in sys.modules if name.partition(".")[0] in NAMES}
print(json.dumps({"ours": sorted(ours), "known": hasattr(dist.Backend, "BLUECOMM")}))
"""
# Later than 2.13, torch asks for a backend when a program names it.
KNOWN_AT_IMPORT = not hasattr(dist.Backend, "_ensure_backend_registered")
calls_entry_points = pytest.mark.skipif(
    not hasattr(torch, "_is_device_backend_autoload_enabled"),
    reason="torch 2.4 calls no entry points",
)
LOOK = f"NAMES = {('bluecomm', 'bluecomm_autoload', 'bfrun')}\n{LOOK}"


@pytest.fixture
def site(tmp_path):
    """Return a folder with the entry points of bluecomm."""
    return install_entry_points(tmp_path / "site")


def run(script, *path, **environ):
    """Run a script of one process with modules from ``path``."""
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path)), **environ},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


@calls_entry_points
def test_import_torch_loads_only_the_registration(site):
    done = run(LOOK, site, ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "ours": ["bluecomm_autoload"],
        "known": KNOWN_AT_IMPORT,
    }
    assert not done.stderr


def test_torch_can_be_told_not_to_look_for_backends(site):
    script = f"{LOOK}\nimport bluecomm\nprint(dist.Backend.BLUECOMM)"
    done = run(script, site, ROOT, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    assert done.returncode == 0, done.stderr
    found, name = done.stdout.splitlines()
    assert json.loads(found) == {"ours": [], "known": False}
    assert name == "bluecomm"


@calls_entry_points
def test_a_broken_copy_of_bluecomm_breaks_only_its_own_groups(site):
    package = site / "bluecomm"
    package.mkdir()
    (package / "__init__.py").write_text("raise ImportError('half of it is missing')")
    made = 'dist.init_process_group("bluecomm", store=dist.HashStore(), rank=0, '
    done = run(f"{LOOK}\n{made}world_size=1)", site)
    assert json.loads(done.stdout) == {
        "ours": ["bluecomm_autoload"],
        "known": KNOWN_AT_IMPORT,
    }
    assert done.stderr.splitlines()[-1] == "ImportError: half of it is missing"


@pytest.fixture
def unregistered(monkeypatch):
    """Let this torch not know the backend."""
    if hasattr(dist.Backend, "BLUECOMM"):
        monkeypatch.delattr(dist.Backend, "BLUECOMM")
    known = []
    monkeypatch.setattr(
        dist.Backend, "register_backend", lambda *args, **options: known.append(args[0])
    )
    return known


def test_a_torch_that_finds_backends_by_name_registers_it_then(
    unregistered, monkeypatch
):
    monkeypatch.delattr(dist.Backend, "_ensure_backend_registered", raising=False)
    bluecomm_autoload.register_at_import_of_torch()
    assert unregistered == ["bluecomm"]
    monkeypatch.setattr(dist.Backend, "_ensure_backend_registered", None, raising=False)
    bluecomm_autoload.register_at_import_of_torch()
    assert unregistered == ["bluecomm"]
    bluecomm_autoload.register()
    assert unregistered == ["bluecomm", "bluecomm"]


def test_a_registered_backend_is_not_registered_again(unregistered, monkeypatch):
    monkeypatch.setattr(dist.Backend, "BLUECOMM", "bluecomm", raising=False)
    bluecomm_autoload.register()
    assert unregistered == []


def test_a_torch_with_another_interface_is_a_warning(unregistered, monkeypatch, caplog):
    monkeypatch.delattr(dist.Backend, "register_backend")
    with caplog.at_level(logging.WARNING, "bluecomm"):
        bluecomm_autoload.register()
    assert "cannot be a backend" in caplog.text
    assert "register_backend" in caplog.text
