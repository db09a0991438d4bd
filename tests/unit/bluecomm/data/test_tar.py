"""Tar files in the layout of WebDataset."""

import io
import os
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.data import whole_file
from bluecomm.data.corrupted_file import CorruptedFileError
from bluecomm.data.tar.dataset import TarDataset
from bluecomm.data.tar.writer import TarWriter
from tests.support.stand_in import replace_in

SAMPLES = [
    ("a/0", {"jpg": b"\xff\xd8" * 400, "cls": b"7"}),
    ("a/1", {"seg.png": b"", "cls": b"3"}),
    ("b.d/2", {"txt": b"words"}),
]


def write(path, samples=SAMPLES):
    with TarWriter(path) as writer:
        for key, fields in samples:
            writer.write(key, fields)
    return path


def expected(samples):
    return [{"__key__": key, **fields} for key, fields in samples]


def write_members(path, members, format=tarfile.PAX_FORMAT):
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return path


def test_samples_are_read_by_number(tmp_path):
    paths = [write(tmp_path / name) for name in ("x.tar", "y.tar")]
    dataset = TarDataset(paths)
    assert [dataset[i] for i in range(6)] == expected(SAMPLES) * 2
    assert dataset[-1] == expected(SAMPLES)[-1]
    assert dataset.fingerprint() == {
        str(path): [path.stat().st_size, 3] for path in paths
    }
    decoded = TarDataset(paths[0], decode=lambda sample: sample["__key__"])
    assert list(decoded) == ["a/0", "a/1", "b.d/2"]
    with pytest.raises(IndexError, match="sample 6 does not exist; there are 6"):
        dataset[6]


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT])
def test_files_of_other_writers_are_read(tmp_path, format):
    """Also long names, a folder, and files without an extension or with no key."""
    key = "k" * 80 if format == tarfile.USTAR_FORMAT else "k" * 300
    path = tmp_path / "a.tar"
    members = [("README", b"1"), (".hidden", b"2"), (f"{key}.x", b"3"), ("z.y", b"4")]
    write_members(path, members, format)
    with tarfile.open(path, "a") as archive:
        folder = tarfile.TarInfo("folder.d")
        folder.type = tarfile.DIRTYPE
        archive.addfile(folder)
    samples = [{"__key__": key, "x": b"3"}, {"__key__": "z", "y": b"4"}]
    assert list(TarDataset(path)) == samples


@settings(max_examples=60, deadline=None)
@given(keep=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_loses_its_last_samples_only(tmp_path_factory, keep):
    path = write(tmp_path_factory.getbasetemp() / "truncated.tar")
    with tarfile.open(path) as archive:
        end = archive.getmembers()[-1].offset_data + tarfile.BLOCKSIZE
    os.truncate(path, int(keep * (end + tarfile.BLOCKSIZE)))
    with pytest.raises(CorruptedFileError, match=r"at byte \d+: this is no intact tar"):
        TarDataset(path)
    dataset = TarDataset(path, on_corrupt="skip")
    assert list(dataset) == expected(SAMPLES)[: len(dataset)]
    assert len(dataset) < len(SAMPLES)
    assert len(dataset.damage) == 1


@settings(max_examples=60, deadline=None)
@given(at=st.integers(0, 511), bits=st.integers(1, 255))
def test_a_flipped_byte_of_a_header_is_found(tmp_path_factory, at, bits):
    path = write(tmp_path_factory.getbasetemp() / "flipped.tar")
    with tarfile.open(path) as archive:
        begin = archive.getmembers()[2].offset
    data = bytearray(path.read_bytes())
    data[begin + at] ^= bits
    path.write_bytes(data)
    dataset = TarDataset(path, on_corrupt="skip")
    if dataset.damage:
        with pytest.raises(CorruptedFileError, match=r"on_corrupt='skip'"):
            TarDataset(path)
        # The sample before the header may be incomplete.
        assert list(dataset) == []
    else:
        # The checksum's own spaces and NULs have several forms.
        assert 148 <= at < 156
        assert list(dataset) == expected(SAMPLES)


def test_a_key_with_two_files_of_one_extension_is_damage(tmp_path):
    path = write_members(tmp_path / "a.tar", [("k.x", b"1"), ("k.x", b"2")])
    with pytest.raises(CorruptedFileError, match=r"sample 'k' has two files \.x"):
        TarDataset(path)


def test_a_file_with_holes_is_refused(tmp_path):
    """GNU tar's --sparse stores a map of the holes before the bytes."""
    path = write_members(tmp_path / "a.tar", [("k.x", b"1")])
    with tarfile.open(path, "a", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("GNUSparseFile.0/l.x")
        member.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": "l.x",
            "GNU.sparse.realsize": "4096",
        }
        data = b"1\n0\n4\n".ljust(512, b"\0") + b"data"
        member.size = len(data)
        archive.addfile(member, io.BytesIO(data))
    with pytest.raises(CorruptedFileError, match=r"'l\.x' is stored with holes, which"):
        TarDataset(path)


def test_a_compressed_file_is_refused(tmp_path):
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz"):
        pass
    with pytest.raises(CorruptedFileError, match="tar file without compression"):
        TarDataset(path)


def test_a_file_that_became_shorter_is_noticed(tmp_path):
    path = write(tmp_path / "a.tar")
    dataset = TarDataset(path)
    os.truncate(path, 600)
    with pytest.raises(
        CorruptedFileError, match=r"\.jpg of sample 'a/0' has 800 bytes, and only 88"
    ):
        dataset[0]


def test_wrong_calls_are_refused(tmp_path):
    path = write(tmp_path / "a.tar")
    with pytest.raises(ValueError, match="on_corrupt must be 'raise' or 'skip'"):
        TarDataset(path, on_corrupt="ignore")
    with pytest.raises(ValueError, match="TarDataset: there is no file"):
        TarDataset([])
    with TarWriter(path) as writer:
        for key in ("", "a.b", "a/"):
            with pytest.raises(ValueError, match="a key has no dot in its last part"):
                writer.write(key, {"x": b""})
        for fields in ({}, {"": b""}, {"a/b": b""}):
            with pytest.raises(ValueError, match="sample 'k' needs fields"):
                writer.write("k", fields)
        writer.write("k", {"x": b""})
        with pytest.raises(ValueError, match="'k' is also the key of the sample"):
            writer.write("k", {"y": b""})
    assert list(TarDataset(path)) == [{"__key__": "k", "x": b""}]


def test_an_error_leaves_the_older_file(tmp_path):
    path = write(tmp_path / "a.tar")
    with pytest.raises(ValueError, match="a key has no dot"), TarWriter(path) as writer:
        writer.write("", {})
    assert list(TarDataset(path)) == expected(SAMPLES)
    assert [one.name for one in tmp_path.iterdir()] == ["a.tar"]


def test_a_full_disk_leaves_the_older_file(tmp_path, monkeypatch):
    path = write(tmp_path / "a.tar")
    writer = TarWriter(path)
    writer.write("new", {"x": b""})

    def fail(*_):
        raise OSError("no space")

    replace_in(monkeypatch, whole_file, "os", replace=fail)
    with pytest.raises(OSError, match="no space"):
        writer.close()
    assert list(TarDataset(path)) == expected(SAMPLES)
    assert [one.name for one in tmp_path.iterdir()] == ["a.tar"]
