"""Command lines for login shells."""

from __future__ import annotations

import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bfrun.launch.ssh import quote_for_any_shell
from tests.support.deadlines import DEADLINE_S

WORDS = [
    "a b",
    "",
    "'",
    '"',
    "\\",
    "\\n",
    "\n",
    "two\nlines\n",
    "$HOME",
    "`id`",
    "!x",
    "*",
    "~",
    "%s",
    "\\0101",
    "-n",
    "ä€",
    "\t",
]
SHELLS = [name for name in ("sh", "bash", "tcsh", "fish") if shutil.which(name)]


def pass_through(shell: str, words: list[str]) -> list[str]:
    """Return the arguments of a program whose line sshd passes to ``shell``."""
    line = quote_for_any_shell(["printf", "%s\\0", *words])
    output = subprocess.check_output([shell, "-c", line], timeout=DEADLINE_S)
    return output.decode().split("\0")[:-1]


@pytest.mark.parametrize("shell", SHELLS)
def test_words_survive_the_login_shell(shell):
    assert pass_through(shell, WORDS) == WORDS


@settings(max_examples=30, deadline=None)
@given(
    st.lists(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=20),
        min_size=1,
        max_size=5,
    )
)
def test_any_words_survive(words):
    assert pass_through("sh", words) == words
