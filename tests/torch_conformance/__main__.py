"""``python -m tests.torch_conformance``: run torch's tests of a backend on bluecomm.

Cases for GPUs, other backends, or that torch has disabled are left out. A case listed
in ``exceptions.py`` must fail, so that the list stays true.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time

from tests.torch_conformance import suite
from tests.torch_conformance.exceptions import EXCEPTIONS


def main() -> int:
    """Run the cases that were asked for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.torch_conformance")
    parser.add_argument("-k", default="", help="run only tests with this word")
    parser.add_argument("--backend", default="bluecomm", help="another one to compare")
    parser.add_argument("--shard", default="0/1", help="N/M: every M-th test from N")
    options = parser.parse_args()
    exceptions = {}
    if options.backend == "bluecomm":
        # The import registers the backend, and the forked ranks need not repeat it.
        import bluecomm.torch_backend.backend  # noqa: F401

        exceptions = EXCEPTIONS
    case = suite.load(options.backend)
    shard, shards = map(int, options.shard.split("/"))
    began = time.monotonic()
    chosen = [name for name in suite.names(case) if options.k in name]
    fit = [name for name in chosen if not suite.unfit(case, name)]
    if not fit:
        parser.error(f"-k {options.k}: no test that fits has this word in its name")
    counts: collections.Counter[str] = collections.Counter()
    for name in fit[shard::shards]:
        verdict, reason, seconds, output = suite.run(case, name)
        if name in exceptions:
            is_listed = verdict == "failed"
            verdict = "excepted" if is_listed else "failed"
            reason = exceptions[name] if is_listed else "exceptions.py lists this case"
        counts[verdict] += 1
        print(f"{seconds:6.1f} s {verdict:9}{name}", flush=True)
        if verdict == "failed":
            print(reason, output[-4000:], sep="\n", flush=True)
        elif reason:
            print(f"{'':9}{reason.strip()}", flush=True)
    total = ", ".join(f"{count} {verdict}" for verdict, count in counts.items())
    left_out = len(chosen) - len(fit)
    print(f"{total}; {left_out} left out; {time.monotonic() - began:.0f} s")
    return 1 if counts["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
