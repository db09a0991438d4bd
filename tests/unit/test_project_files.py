"""Files outside of the packages name only existing settings, links and files."""

import dataclasses
import re
from pathlib import Path

import pytest

from bluecomm.config import Config, variable_name

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BUILD_FILES = [ROOT / name for name in ("Makefile", "setup.py", ".ci/run")]
# Pages name files relative to the folder that they describe.
FOLDERS = [
    *("", "docs", "examples", "bfrun", "bluecomm", "bluecomm/optim"),
    *("native", "native/nccl_net", "native/engine", "native/engine/collectives"),
]


def name_of(path):
    return str(path.relative_to(ROOT))


def variables_in(text):
    """Return the names in the name space of the settings."""
    return set(re.findall(r"(?<![A-Z_])BLUECOMM_[A-Z_]*[A-Z]", text))


def glossary():
    """Return the rows of the glossary: term, meaning, file."""
    lines = (ROOT / "docs/glossary.md").read_text().splitlines()
    rows = [line.strip("| ").split(" | ") for line in lines if line.startswith("| ")]
    return [(term, meaning, file.strip("`")) for term, meaning, file in rows[1:]]


def words(text):
    """Return text in lower case with spaces for hyphens, underscores, line breaks."""
    split_names = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)
    return re.sub(r"[\s_*#-]+", " ", split_names.replace("/", "")).lower()


def plugin_variables():
    """Return the settings of the plugin, which reads them itself."""
    return variables_in((ROOT / "native/nccl_net/settings.cpp").read_text())


def files_in(text):
    """Return the files that a page names, ``a.{h,cpp}`` as two."""
    found = []
    for stem, suffixes in re.findall(
        r"`([\w./-]+)\.(py|cpp|h|md|\{\w+(?:,\w+)+\})`", text
    ):
        found += [f"{stem}.{suffix}" for suffix in suffixes.strip("{}").split(",")]
    return [name for name in found if "NAME" not in name]


def anchors_in(text):
    """Return the anchors that GitHub gives the headings of a page."""
    prose = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ +(.+)$", prose, flags=re.MULTILINE)
    kept = [re.sub(r"[^\w\- ]", "", heading.lower()) for heading in headings]
    return {heading.replace(" ", "-") for heading in kept}


@pytest.mark.parametrize("path", [*PAGES, *BUILD_FILES], ids=name_of)
def test_each_variable_is_a_setting(path):
    """An unknown variable in the environment makes ``init`` fail."""
    settings = {variable_name(field) for field in dataclasses.fields(Config)}
    assert variables_in(path.read_text()) <= settings | plugin_variables()


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_each_link_leads_to_a_file(path):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", path.read_text())
    missing = [
        link
        for link in links
        if not link.startswith("http") and not (path.parent / link).is_file()
    ]
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_each_link_leads_to_a_heading(path):
    links = re.findall(r"\]\((?!http)([^)#]*)#([^)]+)\)", path.read_text())
    missing = []
    for page, anchor in links:
        target = path.parent / page if page else path
        if anchor not in anchors_in(target.read_text()):
            missing.append(f"{page}#{anchor}")
    assert not missing


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_each_file_that_a_page_names_exists(path):
    missing = [
        name
        for name in files_in(path.read_text())
        if not any((ROOT / folder / name).is_file() for folder in FOLDERS)
    ]
    assert not missing


@pytest.mark.parametrize(("term", "file"), [(row[0], row[2]) for row in glossary()])
def test_each_term_occurs_in_the_file_that_defines_it(term, file):
    assert words(term) in words((ROOT / file).read_text())


def test_glossary_is_sorted_without_duplicates():
    terms = [term.lower() for term, _, _ in glossary()]
    assert terms == sorted(set(terms))


def test_words_of_identifiers():
    assert words("kGoodbyeSeen, local_rank\n// one-peer I/O") == (
        "k goodbye seen, local rank one peer io"
    )


def test_what_is_looked_for():
    assert "BLUECOMM_NET_STREAMS" in plugin_variables()
    assert variables_in("X_BLUECOMM_A BLUECOMM_B=1 `BLUECOMM_*`") == {"BLUECOMM_B"}
    assert files_in("`a/b.{h,cpp}` and `NAME.py`, c.py") == ["a/b.h", "a/b.cpp"]
    page = "# A\n\n## Other words (`a_b`), too\n\n```\n# no heading\n```\n"
    assert anchors_in(page) == {"a", "other-words-a_b-too"}
