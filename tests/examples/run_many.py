"""Runs scripts one after the other in one process: ``run_many.py CASES``.

Most of the time of a short run goes into imports. CASES is a file with a list in JSON:
for each run the script and its arguments, as a program of its own would have them.
"""

import json
import runpy
import sys
from pathlib import Path

import bluecomm as bf


def main() -> None:
    (cases,) = sys.argv[1:]
    for script, *arguments in json.loads(Path(cases).read_text()):
        sys.argv = [script, *arguments]
        sys.path.insert(0, str(Path(script).parent))
        runpy.run_path(script, run_name="__main__")
        sys.path.pop(0)
        bf.shutdown()


if __name__ == "__main__":
    main()
