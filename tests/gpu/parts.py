"""The parts of ``make test-gpu`` in the order of their use, and their checks."""

from __future__ import annotations

from tests.gpu import codecs, core, ddp, hot_path, plugin, targets, training
from tests.gpu.job import Check

PARTS: dict[str, dict[str, Check]] = {
    "core": core.CHECKS,
    "training": {**training.CHECKS, **ddp.CHECKS},
    "codecs": codecs.CHECKS,
    "targets": {**targets.CHECKS, **hot_path.CHECKS},
    "plugin": plugin.CHECKS,
}
