"""Run checks on this machine's GPU: python -m tests.gpu core training --output FILE.

Each check is a process of its own, with a time limit. Its line is written to the output
as soon as it has ended, so a run that is cut off loses only the check that was running.
The exit code is 1 if a check has failed, and 2 if one could not run.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tests.gpu.parts import PARTS
from tests.gpu.report import Outcome, Report

_PROBE = "import torch, sys; sys.exit(0 if torch.cuda.is_available() else 7)"
_PROBE_S = 120.0


def main() -> int:
    """Run the parts that the command line names, and print a summary."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu")
    parser.add_argument("parts", nargs="*", metavar="part", help=" ".join(PARTS))
    parser.add_argument("--only", help="checks whose names contain this text")
    parser.add_argument("--output", type=Path, help="write a line of JSON per check")
    parser.add_argument(
        "--limit-s", type=float, default=480.0, help="seconds per part (default: 480)"
    )
    args = parser.parse_args()
    parts = args.parts or list(PARTS)
    if unknown := [part for part in parts if part not in PARTS]:
        parser.error(f"no part is named {unknown[0]}; there are {' '.join(PARTS)}")
    report = Report(args.output)
    obstacle = _obstacle()
    for part in parts:
        end = time.monotonic() + args.limit_s
        for name, check in PARTS[part].items():
            if args.only and args.only not in name:
                continue
            limit_s = min(check.limit_s, end - time.monotonic())
            if obstacle or limit_s <= 0:
                reason = obstacle or f"the {args.limit_s:g} s of this part are over"
                report.add(Outcome(part, name, "NOT RUN", reason, 0.0))
            else:
                report.add(_run(part, name, check.environment, limit_s))
    report.print_summary()
    return report.exit_code


def _obstacle() -> str:
    """Return why no check can run on this interpreter; empty if they can."""
    try:
        code = subprocess.run(
            [sys.executable, "-c", _PROBE], timeout=_PROBE_S
        ).returncode
    except subprocess.TimeoutExpired:
        return f"torch has not found a GPU within {_PROBE_S:g} s"
    if code == 7:
        return f"torch of {sys.executable} sees no GPU"
    return f"{sys.executable} cannot import torch" if code else ""


def _run(part: str, name: str, environment: dict[str, str], limit_s: float) -> Outcome:
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="bluecomm-gpu-") as folder:
        answer, log = Path(folder) / "answer", Path(folder) / "log"
        with open(log, "wb") as out:
            process = subprocess.Popen(
                [sys.executable, "-m", "tests.gpu.one", part, name, str(answer)],
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            code: int | None = process.wait(limit_s)
        except subprocess.TimeoutExpired:
            code = None
        finally:
            # Its ranks are in its group, also if it has failed before they ended.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        end = log.read_bytes()[-3000:].decode(errors="replace")
        taken = time.monotonic() - start
        if code is None:
            detail = f"it did not end within {limit_s:.0f} s; the end of its output:\n"
            return Outcome(part, name, "FAIL", detail + end, taken)
        if not answer.is_file():
            detail = f"it ended with {code}; the end of its output:\n"
            return Outcome(part, name, "FAIL", detail + end, taken)
        verdict, detail = json.loads(answer.read_text())
        if verdict == "FAIL":
            detail += f"\nThe end of its output:\n{end}"
        return Outcome(part, name, verdict, detail, taken)


if __name__ == "__main__":
    sys.exit(main())
