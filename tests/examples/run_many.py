"""Runs a script several times in one process: ``run_many.py SCRIPT CASES``.

Most of the time of a short run goes into imports. CASES is a file with a list of
argument lists in JSON; each one runs the script as a program of its own would.
"""

import json
import runpy
import sys
from pathlib import Path

import bluecomm as bf


def main() -> None:
    script, cases = sys.argv[1:]
    sys.path.insert(0, str(Path(script).parent))
    for arguments in json.loads(Path(cases).read_text()):
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        bf.shutdown()


if __name__ == "__main__":
    main()
