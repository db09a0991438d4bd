"""Run one check: python -m tests.gpu.one PART CHECK ANSWER. Started by tests.gpu."""

from __future__ import annotations

import json
import sys
import tempfile
import traceback
from pathlib import Path

from tests.gpu.job import Check, Job, NotRunError
from tests.gpu.parts import PARTS
from tests.gpu.ranks import run_ranks_on_one_gpu


def outcome_of(check: Check, job: Job) -> tuple[str, str]:
    """Return the verdict on a check, and its details."""
    try:
        return "PASS", check.run(job)
    except NotRunError as reason:
        return "NOT RUN", str(reason)
    except Exception:
        return "FAIL", traceback.format_exc()


def main() -> None:
    """Run the check, and write its verdict and details to a file."""
    part, name, answer = sys.argv[1:]
    with tempfile.TemporaryDirectory(prefix="bluecomm-gpu-") as folder:
        job = Job(run_ranks_on_one_gpu, is_real=True, folder=Path(folder))
        outcome = outcome_of(PARTS[part][name], job)
    # The launcher may kill this process while it writes.
    unfinished = Path(f"{answer}.new")
    unfinished.write_text(json.dumps(outcome))
    unfinished.rename(answer)


if __name__ == "__main__":
    main()
