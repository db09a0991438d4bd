"""The tables of docs/methods.md agree with the algorithms."""

import re
from pathlib import Path

from bluecomm.optim import algorithm_names
from bluecomm.optim.registry import get_algorithm, names_that_survive_losses

PAGE = (Path(__file__).parents[4] / "docs" / "methods.md").read_text()


def rows_of(heading):
    """Return the names in the first column of a section's table, and the rest."""
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \| (.*) \|$", section, re.MULTILINE)
    return [(re.findall(r"`(\w+)`", names), effects) for names, effects in rows]


def test_each_algorithm_says_what_a_lost_and_a_new_rank_do():
    rows = rows_of("Ranks that are lost or join")
    of_all = {name: effects.split(" | ") for names, effects in rows for name in names}
    assert sorted(of_all) == sorted(name for names, _ in rows for name in names)
    ours = [
        name
        for name in algorithm_names()
        if get_algorithm(name).__module__.startswith("bluecomm.")
    ]
    assert sorted(of_all) == ours
    survivors = names_that_survive_losses()
    for name, (lost, joins) in of_all.items():
        assert ("refused" in lost) == (name not in survivors), name
        admits = get_algorithm(name).admits_newcomers
        assert (joins == "not admitted") == (not admits), name
