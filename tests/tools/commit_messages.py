"""Checks commit messages against the rules of CONTRIBUTING.md.

``make check`` runs it over the commits since the newest tag; the commit-msg hook of
``.pre-commit-config.yaml`` runs it with ``--message FILE``. Standard library only.

The check of the imperative mood uses no dictionary: it refuses first words such as
Adds, Added, Adding, The and What, but does not notice a noun.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
# The commits before this one are older than the rules.
FIRST = "4f492291fdb35b2a09e7eb504ae482d4cdaacca9"
MAX_SUBJECT = 60

_CODE = (".py", ".pyi", ".cpp", ".h", "Makefile")
_OTHER_WORDS = """
    a again all also an and another any as at both by each every few for from how if in
    into it its less many more most much new no nobody none not nothing now of on one
    only or other our some such that the their there these they this those to too two we
    what when where which while who whose why with without
"""
_ENDS_LIKE_ANOTHER_FORM = """
    alias bias bring embed exceed feed focus heed need proceed ring seed shed shred
    speed spring string succeed weed
"""
_NOT_IMPERATIVE = frozenset(_OTHER_WORDS.split())
_IMPERATIVE = frozenset(_ENDS_LIKE_ANOTHER_FORM.split())
_LITERAL_OR_COMMENT = re.compile(
    r'("(?:\\.|[^"\\\n])*")|//[^\n]*|/\*.*?\*/', flags=re.DOTALL
)
_TRAILER = re.compile(r"[A-Z][\w-]+-(by|By): ")


def areas(contributing: str) -> list[str]:
    """Return the areas that CONTRIBUTING.md lists: the first column of their table."""
    _, found, after = contributing.partition("| area |")
    rows = after.split("\n\n")[0].splitlines() if found else []
    return [name for row in rows for name in re.findall(r"^\| `([\w-]+)` \|", row)]


def problems(message: str, known: Sequence[str], *, changes_code: bool) -> list[str]:
    """Return what is wrong with a message; empty if nothing is.

    Args:
        message: The whole message, without git's comments.
        known: The areas that exist.
        changes_code: Whether the commit changes code, and so needs a body.
    """
    lines = message.strip().splitlines()
    if not lines:
        return ["the message is empty"]
    subject, found = lines[0], []
    if len(subject) > MAX_SUBJECT:
        found.append(f"the subject has {len(subject)} characters, over {MAX_SUBJECT}")
    if ";" in subject:
        found.append("the subject joins two topics with ';': make two commits")
    if subject.endswith("."):
        found.append("the subject ends with a full stop")
    area, colon, text = subject.partition(": ")
    if not colon:
        found.append("the subject has no area: write 'area: Imperative subject'")
    else:
        names = area.split(", ")
        unknown = [name for name in names if name not in known]
        if unknown:
            found.append(f"'{unknown[0]}' is not in the list of areas")
        if len(names) > 2:
            found.append("the subject names more than two areas: take 'tree'")
        found += _problems_of_first_word(text)
    if len(lines) > 1 and lines[1].strip():
        found.append("the line after the subject is not empty")
    body = [line for line in lines[1:] if line.strip() and not _TRAILER.match(line)]
    if changes_code and not body:
        found.append("a change of code needs a body that says why")
    return found


def _problems_of_first_word(text: str) -> list[str]:
    word = text.split(" ")[0]
    if not word[:1].isupper():
        return [f"'{word}' does not begin with a capital letter"]
    if not _is_imperative(word.lower()):
        return [f"'{word}' is not an imperative, as in 'Add a test'"]
    return []


def _is_imperative(word: str) -> bool:
    if word in _IMPERATIVE:
        return True
    inflected = word.endswith(("ed", "ing")) or re.search("[^s]s$", word)
    return not (word in _NOT_IMPERATIVE or inflected or not word.isalpha())


def without_prose(path: str, source: str) -> str:
    """Return source without comments, docstrings and messages, to compare code.

    A message is a string of one line with a space in it.
    """
    if path.endswith((".py", ".pyi")):
        return _python_without_prose(source)
    if path.endswith((".cpp", ".h")):
        kept = re.sub(_LITERAL_OR_COMMENT, _literal_without_message, source)
        # The formatter decides on spaces, line breaks and the parts of a long text.
        joined = "".join(kept.split()).replace(",}", "}")
        return re.sub('(?:"")+', '""', joined)
    lines = (line.strip() for line in source.splitlines())
    return "\n".join(line for line in lines if not line.startswith("#"))


def _literal_without_message(found: re.Match[str]) -> str:
    literal = found[1] or " "
    return '""' if " " in literal.strip() else literal


def _python_without_prose(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list):
            node.body = [each for each in body if not _is_prose(each)]  # type: ignore[attr-defined]
        if isinstance(node, ast.JoinedStr):
            node.values = [each for each in node.values if not _is_message(each)]
        elif isinstance(node, ast.Constant) and _is_message(node):
            node.value = ""
    return ast.dump(tree)


def _is_message(node: ast.AST) -> bool:
    if not isinstance(node, ast.Constant) or not isinstance(node.value, str):
        return False
    return " " in node.value and "\n" not in node.value


def _is_prose(statement: ast.AST) -> bool:
    """Return whether a statement is a docstring or ``...``."""
    if not (
        isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
    ):
        return False
    return isinstance(statement.value.value, str) or statement.value.value is ...


def _git(*arguments: str) -> str | None:
    """Return what git prints in this repository; ``None`` if it fails."""
    try:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.decode(errors="replace")


def _changes_code(before: str, after: str) -> bool:
    """Return whether code differs between two trees; ``:`` names the index."""
    trees = ["--cached", before] if after == ":" else [before, after]
    names = _git("diff", "--name-only", "--no-renames", *trees) or ""
    return any(
        _code_of(before, path) != _code_of(after, path)
        for path in names.splitlines()
        if path.endswith(_CODE)
    )


def _code_of(tree: str, path: str) -> str:
    source = _git("show", f":{path}" if tree == ":" else f"{tree}:{path}") or ""
    try:
        return without_prose(path, source)
    except SyntaxError:
        return source


def check_commits(base: str, known: Sequence[str]) -> Iterator[str]:
    """Yield a line for each problem of the commits after ``base``, oldest first."""
    commits = _git("rev-list", "--reverse", "--no-merges", f"{base}..HEAD") or ""
    for commit in commits.split():
        message = _git("show", "-s", "--format=%B", commit) or ""
        found = problems(message, known, changes_code=False)
        # Asked only where it matters, because it reads each changed file twice.
        if not found and problems(message, known, changes_code=True):
            code = _changes_code(f"{commit}^", commit)
            found = problems(message, known, changes_code=code)
        subject = message.partition("\n")[0]
        yield from (f"{commit[:7]} '{subject}': {problem}" for problem in found)


def find_base() -> str | None:
    """Return the newest tag, or the first commit, or ``None`` without git history."""
    tag = (_git("describe", "--tags", "--abbrev=0") or "").strip()
    if tag:
        return tag
    is_known = _git("merge-base", "--is-ancestor", FIRST, "HEAD") is not None
    return FIRST if is_known else None


def main(arguments: Sequence[str] | None = None) -> int:
    """Check a message file or the commits since the last release."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--message", type=Path, help="file with the message of the staged commit"
    )
    args = parser.parse_args(arguments)
    known = areas((ROOT / "CONTRIBUTING.md").read_text())
    if args.message:
        lines = args.message.read_text().splitlines()
        message = "\n".join(line for line in lines if not line.startswith("#"))
        # git merges these into another commit, whose message counts.
        if message.startswith(("fixup! ", "squash! ", "amend! ", "Merge ")):
            return 0
        found = problems(message, known, changes_code=_changes_code("HEAD", ":"))
    else:
        base = find_base()
        if base is None:
            print(f"commit messages not checked: no git history since {FIRST[:7]}")
            return 0
        found = list(check_commits(base, known))
    for problem in found:
        print(f"commit message: {problem}", file=sys.stderr)
    if found:
        print("see 'Commits' in CONTRIBUTING.md", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
