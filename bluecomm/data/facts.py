"""Facts that identify a dataset: its length, and its files if it has some."""

from __future__ import annotations

from collections.abc import Mapping, Sized
from typing import Any

_SHOWN = 4


def dataset_facts(dataset: Sized) -> dict[str, Any]:
    """Return the length of a dataset, and its ``fingerprint()`` if it has one."""
    facts: dict[str, Any] = {"length": len(dataset)}
    fingerprint = getattr(dataset, "fingerprint", None)
    if callable(fingerprint):
        facts["fingerprint"] = fingerprint()
    return facts


def differences(saved: Mapping[str, Any], present: Mapping[str, Any]) -> str:
    """Say how facts differ from saved ones; empty if they do not.

    Facts that are mappings themselves, such as fingerprints, are compared by key.
    """
    found: list[str] = []
    for name in {**saved, **present}:
        before, now = saved.get(name), present.get(name)
        if before == now:
            continue
        if isinstance(before, Mapping) and isinstance(now, Mapping):
            inner = differences(before, now)
            found.append(f"{name}: {inner}")
        else:
            found.append(f"{name} was {before!r} and is {now!r}")
    more = f", and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
    return ", ".join(found[:_SHOWN]) + more
