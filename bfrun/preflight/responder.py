"""Answers the questions of the pre-flight on one machine.

The driver starts this program on every host and talks to it in lines of JSON over its
standard input and output. It ends at the end of its input, or after a time that the
driver sets with each question.

Standard library only, Python 3.8.
"""

from __future__ import annotations

import json
import signal
import sys
from typing import Any, Dict  # noqa: UP035

from bfrun.preflight.gpus import gpu_facts
from bfrun.preflight.reach import ProbeListener, dial
from bfrun.probe import machine_facts

# Seconds within which the first question must arrive.
_FIRST_S = 120


def answer(request: Dict[str, Any]) -> Dict[str, Any]:  # noqa: UP006
    """Return the answer to one question."""
    what = request["do"]
    if what == "facts":
        return machine_facts(request)
    if what == "gpus":
        return gpu_facts(request)
    if what == "listen":
        key = bytes.fromhex(request["key"])
        return {
            "ports": ProbeListener(request["addresses"], request["name"], key).ports
        }
    if what == "dial":
        return {"reasons": dial(request["targets"], bytes.fromhex(request["key"]))}
    return {}


def main() -> None:
    """Answer questions until one says ``end``, or standard input ends."""
    signal.alarm(_FIRST_S)
    for line in sys.stdin:
        request = json.loads(line)
        signal.alarm(request["lifetime_s"])
        print(request["mark"] + json.dumps(answer(request)), flush=True)
        if request["do"] == "end":
            return
