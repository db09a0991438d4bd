"""Keeps the results of autotuning in a file, and finds them again in a later job."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bluecomm.optim.autotune.search import Search
from bluecomm.optim.autotune.space import Setting, Space

_log = logging.getLogger("bluecomm")

# Version of the file's form. Results in another form are tuned again.
_VERSION = 1
_KEY = "bluecomm_autotune"


class TunedFile:
    """A JSON file with an entry for each optimizer of a program.

    One rank reads and writes it.

    Args:
        path: The file, which need not exist.

    Raises:
        ValueError: Its folder does not exist, or it is a file of something else.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        if not path.absolute().parent.is_dir():
            raise ValueError(
                f"autotune: the folder of the file {str(path)!r} does not exist on the "
                "host of rank 0; make it, or name another file"
            )
        self._read()

    def find(self, name: str, facts: Mapping[str, str], space: Space) -> Setting | None:
        """Return the setting of an optimizer; None, with a warning, if it is stale.

        Args:
            name: Name of the optimizer.
            facts: The facts on which the result depends.
            space: The settings from which to choose.
        """
        entry = self._read().get(name)
        if entry is None:
            return None
        before = entry.get("facts", {}) if isinstance(entry, dict) else {}
        changed = [
            f"{fact} was {before.get(fact, 'unknown')} and is {value}"
            for fact, value in facts.items()
            if before.get(fact) != value
        ]
        setting = entry.get("setting") if isinstance(entry, dict) else None
        if not changed and space.has(setting):
            return dict(setting)
        _log.warning(
            "%s: the result of autotune in %s is stale, so it is tuned again: %s",
            name,
            self._path,
            "; ".join(changed) or "it has no setting that may be tried",
        )
        return None

    def keep(
        self, name: str, facts: Mapping[str, str], kept: Setting, search: Search
    ) -> None:
        """Write the result of an optimizer; the other entries stay.

        Raises:
            OSError: The file cannot be written.
        """
        entries = self._read()
        entries[name] = {
            "facts": dict(facts),
            "setting": dict(kept),
            "gain": search.gain,
            "trials": [
                {"setting": dict(trial.setting), "speed": trial.speed}
                for trial in search.trials
            ],
        }
        document = {_KEY: _VERSION, "optimizers": entries}
        scratch = self._path.with_name(f"{self._path.name}.{os.getpid()}.tmp")
        scratch.write_text(json.dumps(document, indent=2) + "\n")
        scratch.replace(self._path)

    def _read(self) -> dict[str, Any]:
        """Return the entries by optimizer."""
        try:
            document = json.loads(self._path.read_text() or "{}")
        except FileNotFoundError:
            return {}
        except (OSError, ValueError) as error:
            raise self._foreign(str(error)) from error
        if document == {}:
            return {}
        if not isinstance(document, dict) or _KEY not in document:
            raise self._foreign(f"it has no {_KEY!r}")
        entries = document.get("optimizers")
        if document[_KEY] != _VERSION or not isinstance(entries, dict):
            return {}
        return entries

    def _foreign(self, why: str) -> ValueError:
        return ValueError(
            f"autotune: {str(self._path)!r} is not a file of autotune, and would be "
            f"overwritten ({why}); name another file, or delete this one"
        )
