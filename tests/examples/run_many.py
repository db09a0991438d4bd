"""Runs scripts one after the other in one process: ``run_many.py CASES``.

Imports take most of the time of a short run. CASES is a JSON file with a list that has
the script and its arguments for each run.
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
