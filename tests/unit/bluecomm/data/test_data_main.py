"""``python -m bluecomm.data``."""

import sys

import pytest

from bluecomm.data.__main__ import main
from bluecomm.data.recordio.dataset import RecordIODataset
from bluecomm.data.tar.dataset import TarDataset

SOURCE = """
words = [b"a", b"bc"]
def mapped(): return words
def iterable(): return iter(words)
def objects(): return [1]
def fields(): return [{"x": b"1", "y": b"2"}]
"""


@pytest.fixture
def run(tmp_path, monkeypatch, capsys):
    """Return what calls main in a folder with a module of datasets."""
    (tmp_path / "made_source.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "made_source", raising=False)

    def call(*arguments):
        code = main(arguments)
        return (code, *capsys.readouterr())

    return call


def test_files_are_converted_and_back(run):
    sources = ("made_source:mapped", "made_source:iterable")
    assert run("convert", *sources, "w.recordio", "--compressor", "gzip") == (
        *(0, "w.recordio: 4 samples\n", ""),
    )
    assert run("convert", "w.recordio", "w.tar", "--field", "txt")[0] == 0
    assert TarDataset("w.tar")[3] == {"__key__": "000000003", "txt": b"bc"}
    assert run("convert", "w.tar", "v.recordio", "--field", "txt")[0] == 0
    assert list(RecordIODataset("v.recordio")) == [b"a", b"bc"] * 2
    assert run("convert", "made_source:fields", "f.tar")[0] == 0
    assert run("convert", "f.tar", "g.tar")[0] == 0
    assert list(TarDataset("g.tar")) == [{"__key__": "000000000", "x": b"1", "y": b"2"}]


def test_files_are_indexed_checked_and_shown(run, tmp_path):
    run("convert", "made_source:mapped", "w.recordio")
    (tmp_path / "w.recordio.index").unlink()
    assert run("index", "w.recordio")[1] == "w.recordio: 2 records in 1 chunk\n"
    assert (tmp_path / "w.recordio.index").exists()
    assert run("check", "w.recordio") == (0, "w.recordio: 2 samples intact\n", "")
    assert run("show", "w.recordio", "-n1")[1] == (
        "w.recordio: 2 samples, 31 bytes, RecordIO, 1 chunk\n  0: 1 bytes b'a'\n"
    )
    run("convert", "made_source:fields", "f.tar")
    assert run("show", "f.tar")[1] == (
        "f.tar: 1 sample, 10240 bytes, tar\n"
        "  0: __key__='000000000' x=1 bytes y=1 bytes\n"
    )
    data = bytearray((tmp_path / "w.recordio").read_bytes())
    data[-1] ^= 1
    (tmp_path / "w.recordio").write_bytes(data)
    code, out, _ = run("check", "w.recordio", "f.tar")
    assert code == 1
    assert "w.recordio: at byte 0: the chunk's checksum" in out
    assert out.endswith("w.recordio: 0 samples intact\nf.tar: 1 sample intact\n")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["convert", "made_source:nothing", "x"], "has no function 'nothing'"),
        (["convert", "no_such_module:x", "x"], "No module named 'no_such_module'"),
        (
            ["convert", "made_source:objects", "x"],
            "sample 0 has type int; a file holds",
        ),
        (["convert", "made_source:objects", "x.tar"], "sample 0 has type int"),
        (["convert", "made_source:fields", "x"], "no field 'bin'; choose one of its"),
        (["show", "missing"], "No such file"),
        (["index", "made_source.py"], "a chunk begins with 0x01020304"),
    ],
)
def test_errors_are_printed(run, arguments, text):
    code, _, err = run(*arguments)
    assert code == 2
    assert err.startswith("bluecomm.data: ")
    assert text in err
