"""The check of commit messages, with good and bad messages and a real history."""

from __future__ import annotations

import subprocess

import pytest

from tests.tools import commit_messages
from tests.tools.commit_messages import areas, main, problems, without_prose

AREAS = ["engine", "docs", "nccl_net"]


def test_areas_are_those_of_the_contributors_guide():
    known = areas((commit_messages.ROOT / "CONTRIBUTING.md").read_text())
    assert {"engine", "bfrun", "docs", "tree"} <= set(known)
    assert known == sorted(set(known))


@pytest.mark.parametrize(
    "message",
    [
        "engine: Skip polling after a long idle sleep\n\nA leader slept too long.",
        "docs: Add a glossary",
        "nccl_net: Process frames of unknown kinds\n\nThey were dropped.",
        "docs: Embed the picture",
        "docs, nccl_net: Rename the plugin",
        "docs: Focus on what a user looks for\n\nSigned-off-by: A B <a@b>",
        "docs: " + 54 * "A",
    ],
)
def test_good_messages(message):
    assert problems(message, AREAS, changes_code="engine" in message) == []


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("", "the message is empty"),
        ("Add a glossary", "has no area"),
        ("mover: Add a glossary", "'mover' is not in the list of areas"),
        ("docs, mover: Add a glossary", "'mover' is not in the list of areas"),
        ("docs, engine, nccl_net: Add a word", "more than two areas: take 'tree'"),
        ("docs: add a glossary", "'add' does not begin with a capital letter"),
        ("docs: Adds a glossary", "'Adds' is not an imperative"),
        ("docs: Added a glossary", "'Added' is not an imperative"),
        ("docs: Adding a glossary", "'Adding' is not an imperative"),
        ("docs: What a glossary says", "'What' is not an imperative"),
        ("docs: 3 more terms", "'3' does not begin with a capital letter"),
        ("docs: A glossary", "'A' is not an imperative"),
        ("docs: Add a glossary; fix a link", "joins two topics"),
        ("docs: Add a glossary.", "ends with a full stop"),
        ("docs: " + 55 * "A", "the subject has 61 characters, over 60"),
        ("docs: Add a glossary\nof terms", "line after the subject is not empty"),
    ],
)
def test_bad_messages(message, problem):
    (found,) = problems(message, AREAS, changes_code=False)
    assert problem in found


@pytest.mark.parametrize("rest", ["", "\n\n", "\n\nSigned-off-by: A B <a@b>"])
def test_a_change_of_code_needs_a_body(rest):
    (found,) = problems(f"engine: Skip a poll{rest}", AREAS, changes_code=True)
    assert "needs a body" in found


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a.py", 'x = 1  # one\ndef f():\n  "Old."', 'x = 1\ndef f():\n  "New."'),
        ("a.cpp", "int x;  // one\n/* a\nb */", "int x;\n"),
        ("a.h", 'f("a//b");', 'f("a//b");  // c'),
        ("a.cpp", 'f("one text");', 'f("another text");'),
        ("a.cpp", "enum { a, b, };", "enum { a, b };"),
        ("a.py", 'f("one text", f"a {x}")', 'f("another text", f"the {x}")'),
        ("a.pyi", "def f(): ...", 'def f():\n  "Does it."'),
        ("Makefile", "# one\nall:\n", "all:\n"),
    ],
)
def test_prose_is_not_code(path, before, after):
    assert without_prose(path, before) == without_prose(path, after)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("a.cpp", 'f("a//b");', 'f("a//c");'),
        ("a.cpp", 'f("one text", 1);', 'f("one text", 2);'),
        ("a.py", 'f("a")', 'f("b")'),
        ("a.py", 'run("import a\\nmain()")', 'run("import b\\nmain()")'),
        ("Makefile", "all: a", "all: b"),
    ],
)
def test_words_and_programs_in_quotes_are_code(path, before, after):
    assert without_prose(path, before) != without_prose(path, after)


@pytest.fixture
def history(tmp_path, monkeypatch):
    """Commit in a repository that the check takes for this one."""

    def git(*arguments):
        identity = ("-c", "user.name=A", "-c", "user.email=a@b")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True)

    def commit(message, **files):
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        git("add", "-A")
        git("commit", "-q", "--no-verify", "--allow-empty", "-m", message)
        return git("rev-parse", "HEAD").stdout.strip()

    git("init", "-q")
    guide = "| area | what |\n|---|---|\n| `docs` | |\n| `engine` | |\n\nMore.\n"
    (tmp_path / "CONTRIBUTING.md").write_text(guide)
    monkeypatch.setattr(commit_messages, "ROOT", tmp_path)
    monkeypatch.setattr(commit_messages, "FIRST", commit("Old and wrong"))
    commit.git = git
    return commit


def test_the_commits_after_the_first_are_checked(history, capsys):
    history("engine: Add a file\n\nFor a test.", a="x = 1\n")
    history("engine: Explain x", a="x = 1  # one\n")
    assert main([]) == 0
    wrong = history("engine: Change x", a="x = 2\n")
    assert main([]) == 1
    said = capsys.readouterr().err
    assert f"{wrong[:7]} 'engine: Change x': a change of code needs a body" in said


def test_the_commits_before_the_newest_tag_are_not_checked(history):
    history("wrong again")
    history.git("tag", "v1")
    assert main([]) == 0


def test_without_history_nothing_is_checked(tmp_path, monkeypatch, capsys):
    (tmp_path / "CONTRIBUTING.md").write_text("")
    monkeypatch.setattr(commit_messages, "ROOT", tmp_path)
    assert main([]) == 0
    assert "commit messages not checked" in capsys.readouterr().out


def test_the_hook_reads_the_message_and_the_index(history, tmp_path, capsys):
    file = tmp_path / "message"
    file.write_text("engine: Change x\n# a comment of git\n")
    assert main(["--message", str(file)]) == 0
    (tmp_path / "a.py").write_text("x = 3\n")
    history.git("add", "a.py")
    assert main(["--message", str(file)]) == 1
    assert "needs a body" in capsys.readouterr().err
    file.write_text("fixup! anything")
    assert main(["--message", str(file)]) == 0
