"""RecordIO files: the format byte by byte, damage, and the dataset."""

import gzip
import os
import pickle
import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bluecomm.data.corrupted_file import CorruptedFileError
from bluecomm.data.recordio.dataset import RecordIODataset
from bluecomm.data.recordio.index import index_path, load_chunks, write_index
from bluecomm.data.recordio.scan import scan_headers, scan_intact
from bluecomm.data.recordio.writer import RecordIOWriter

RECORDS = [b"Hello", b"", b"World!" * 50, bytes(range(256))]
COMPRESSORS = ["none", "snappy", "gzip"]


def write(path, records, **options):
    with RecordIOWriter(path, **options) as writer:
        for record in records:
            writer.write(record)
    return path


def stored_form(records):
    return b"".join(struct.pack("<I", len(one)) + one for one in records)


def chunk_bytes(records, number, stored):
    head = (0x01020304, zlib.crc32(stored), number, len(stored), len(records))
    return struct.pack("<5I", *head) + stored


# The bytes of golang/snappy for the records b"ab", b"c": the identifier of the framing
# format, and one uncompressed frame with the masked CRC32C of its data.
GO_SNAPPY = bytes.fromhex("ff060000734e61507059010f00006c54ba6c") + stored_form(
    [b"ab", b"c"]
)


def test_a_file_has_the_bytes_of_the_format(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    assert path.read_bytes() == chunk_bytes(RECORDS, 0, stored_form(RECORDS))


@pytest.mark.parametrize(
    ("number", "stored"),
    [
        (0, stored_form([b"ab", b"c"])),
        (1, GO_SNAPPY),
        (2, gzip.compress(stored_form([b"ab", b"c"]))),
    ],
    ids=COMPRESSORS,
)
def test_files_of_other_writers_are_read(tmp_path, number, stored):
    path = tmp_path / "a"
    path.write_bytes(chunk_bytes([b"ab", b"c"], number, stored) * 2)
    assert list(RecordIODataset(path)) == [b"ab", b"c"] * 2


@settings(max_examples=40, deadline=None)
@given(
    records=st.lists(st.binary(max_size=60), max_size=30),
    compressor=st.sampled_from(COMPRESSORS),
    chunk_nbytes=st.integers(1, 200),
)
def test_what_is_written_is_read(tmp_path_factory, records, compressor, chunk_nbytes):
    path = tmp_path_factory.getbasetemp() / "written"
    write(path, records, compressor=compressor, chunk_nbytes=chunk_nbytes)
    dataset = RecordIODataset(path, kept_nbytes=100)
    assert [dataset[i] for i in range(len(dataset))] == records
    assert [dataset[i - len(records)] for i in range(len(dataset))] == records
    assert load_chunks(str(path)) == scan_headers(str(path))


@pytest.mark.parametrize("compressor", COMPRESSORS)
def test_a_header_with_too_many_records_is_damaged(tmp_path, compressor):
    """The checksum leaves the header out, and len() would be in the billions."""
    path = tmp_path / "file"
    write(path, [b"record"] * 3, compressor=compressor)
    data = bytearray(path.read_bytes())
    data[19] = 0xBD
    path.write_bytes(data)
    os.unlink(index_path(path))
    with pytest.raises(CorruptedFileError, match=r"stored bytes cannot hold 3170\d+ r"):
        RecordIODataset(path)


def test_a_header_without_records_is_damaged(tmp_path):
    """Otherwise the records of the chunk would be missing without an error."""
    path = tmp_path / "file"
    write(path, [b"one", b"two"], compressor="gzip")
    data = bytearray(path.read_bytes())
    data[16] = 0
    path.write_bytes(data)
    os.unlink(index_path(path))
    with pytest.raises(CorruptedFileError, match="stored bytes and no record"):
        RecordIODataset(path)


def test_the_smallest_records_compress_well(tmp_path):
    for compressor in COMPRESSORS:
        path = tmp_path / compressor
        write(path, [b""] * 100_000, compressor=compressor)
        assert len(RecordIODataset(path)) == 100_000


@settings(max_examples=150, deadline=None)
@given(
    compressor=st.sampled_from(COMPRESSORS),
    at=st.floats(0, 1, exclude_max=True),
    bits=st.integers(1, 255),
)
def test_a_flipped_byte_is_found_and_costs_one_chunk(
    tmp_path_factory, compressor, at, bits
):
    """CRC32 finds each change of up to 32 adjacent bits, so none is missed."""
    path = tmp_path_factory.getbasetemp() / "flipped"
    records = [bytes([i]) * (7 * i) for i in range(1, 13)]
    write(path, records, compressor=compressor, chunk_nbytes=100)
    chunks = scan_headers(str(path))
    data = bytearray(path.read_bytes())
    offset = int(at * len(data))
    data[offset] ^= bits
    path.write_bytes(data)
    os.unlink(index_path(path))
    hurt = next(i for i, chunk in enumerate(chunks) if offset < chunk.end)
    with pytest.raises(CorruptedFileError) as caught:
        list(RecordIODataset(path))
    assert caught.value.path == str(path)
    # A smaller size makes the header of the next chunk wrong.
    assert caught.value.offset >= chunks[hurt].offset
    dataset = RecordIODataset(path, on_corrupt="skip")
    begin = sum(chunk.records for chunk in chunks[:hurt])
    end = begin + chunks[hurt].records
    assert list(dataset) == records[:begin] + records[end:]
    assert [one.offset for one in dataset.damage] == [chunks[hurt].offset]


@settings(max_examples=60, deadline=None)
@given(compressor=st.sampled_from(COMPRESSORS), keep=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_loses_its_last_chunks_only(
    tmp_path_factory, compressor, keep
):
    path = tmp_path_factory.getbasetemp() / "truncated"
    records = [bytes([i]) * (7 * i) for i in range(1, 13)]
    write(path, records, compressor=compressor, chunk_nbytes=100)
    chunks = scan_headers(str(path))
    length = int(keep * path.stat().st_size)
    os.truncate(path, length)
    whole = [chunk for chunk in chunks if chunk.end <= length]
    dataset = RecordIODataset(path, on_corrupt="skip")
    assert list(dataset) == records[: sum(chunk.records for chunk in whole)]
    end = whole[-1].end if whole else 0
    assert [one.offset for one in dataset.damage] == [end]
    with pytest.raises(CorruptedFileError, match=rf"at byte {end}: .*the file"):
        RecordIODataset(path)


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"\4\3\2\1", "has 20 bytes, and the file ends after 4"),
        (b"x" * 20, "begins with 0x01020304, not with 0x78787878"),
        (chunk_bytes([b""], 9, b"1234"), "compressor 9 is unknown"),
        (chunk_bytes([b""], 0, b"1234")[:-1], "ends at byte 24, and the file at 23"),
        (chunk_bytes([b""], 0, b"1234"), "record 0 exceeds its chunk"),
        (chunk_bytes([b""], 0, b"123"), "3 stored bytes cannot hold 1 record;"),
        (chunk_bytes([b""], 0, bytes(8)), "4 bytes follow the last of the 1 records"),
        (chunk_bytes([b""], 1, b"1234"), "snappy cannot decompress"),
        (chunk_bytes([b""], 2, b"1234"), "gzip cannot decompress"),
        (chunk_bytes([b""], 2, gzip.compress(b"1234")[:-9]), "gzip cannot decompress"),
    ],
)
def test_damage_is_named(tmp_path, data, match):
    path = tmp_path / "a"
    path.write_bytes(data)
    with pytest.raises(CorruptedFileError, match=match):
        RecordIODataset(path)[0]
    _, damage = scan_intact(str(path))
    assert len(damage) == 1


def test_a_changed_checksum_is_named(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptedFileError, match=r"checksum is 0x.* on_corrupt='skip'"):
        RecordIODataset(path)[0]


def test_an_index_of_another_file_is_noticed(tmp_path):
    """It is ignored if the size differs; if the size is the same, a header differs."""
    path = write(tmp_path / "a", [b"123", b"4567"], chunk_nbytes=1)
    other = write(tmp_path / "b", [b"12", b"34567", b""], chunk_nbytes=1)
    os.replace(index_path(other), index_path(path))
    assert list(RecordIODataset(path)) == [b"123", b"4567"]
    write_index(str(path), scan_headers(str(path)))
    path.write_bytes(
        chunk_bytes([b"4567"], 0, stored_form([b"4567"]))
        + chunk_bytes([b"123"], 0, stored_form([b"123"]))
    )
    dataset = RecordIODataset(path)
    with pytest.raises(CorruptedFileError, match="has changed since it was indexed"):
        dataset[0]


@pytest.mark.parametrize("kept", [0, 1])
def test_a_file_that_ends_between_chunks_of_its_index_is_truncated(tmp_path, kept):
    path = write(tmp_path / "a", [b"12", b"345", b"6"], chunk_nbytes=1)
    end = scan_headers(str(path))[kept].offset
    os.truncate(path, end)
    text = f"at byte {end}: the file ends here, and its index lists {3 - kept} more"
    with pytest.raises(CorruptedFileError, match=text):
        RecordIODataset(path)
    dataset = RecordIODataset(path, on_corrupt="skip")
    assert list(dataset) == [b"12"][:kept]
    assert [one.offset for one in dataset.damage] == [end]
    os.unlink(index_path(path))
    assert list(RecordIODataset(path)) == [b"12"][:kept]


@pytest.mark.parametrize("damage", [b"", b"1234", b"BCRIOIX1" + b"\0" * 20])
def test_a_damaged_index_is_ignored(tmp_path, damage):
    path = write(tmp_path / "a", RECORDS)
    with open(index_path(path), "wb") as file:
        file.write(damage)
    assert list(RecordIODataset(path)) == RECORDS


def test_the_index_is_used(tmp_path, monkeypatch):
    path = write(tmp_path / "a", RECORDS)
    monkeypatch.setattr("bluecomm.data.recordio.index.scan_headers", None)
    assert list(RecordIODataset(path)) == RECORDS


def test_an_index_that_cannot_be_written_leaves_nothing(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    os.unlink(index_path(path))
    os.mkdir(index_path(path))
    with pytest.raises(OSError, match="index"):
        write_index(str(path), [])
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "a.index"]


def test_a_dataset_of_several_files(tmp_path):
    paths = [write(tmp_path / name, [name.encode()] * 2) for name in "abc"]
    dataset = RecordIODataset(paths, decode=bytes.decode)
    assert list(dataset) == ["a", "a", "b", "b", "c", "c"]
    assert dataset.fingerprint() == {str(path): [30, 2] for path in paths}
    copy = pickle.loads(pickle.dumps(dataset))
    assert copy[-1] == "c"
    with pytest.raises(IndexError, match="record 6 does not exist; there are 6"):
        dataset[6]


def test_neighbors_share_one_read(tmp_path, monkeypatch):
    path = write(tmp_path / "a", RECORDS)
    dataset = RecordIODataset(path)
    first = dataset[0]
    monkeypatch.setattr("bluecomm.data.recordio.dataset.read_chunk", None)
    assert [first, *(dataset[i] for i in (1, 2, 3))] == RECORDS


def test_an_error_leaves_the_older_file(tmp_path):
    path = write(tmp_path / "a", RECORDS)
    with pytest.raises(TypeError), RecordIOWriter(path) as writer:
        writer.write("text")
    assert list(RecordIODataset(path)) == RECORDS
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "a.index"]


@pytest.mark.parametrize(
    "function", ["bluecomm.data.recordio.writer.encode_chunk", "os.replace"]
)
def test_a_full_disk_leaves_the_older_file(tmp_path, monkeypatch, function):
    path = write(tmp_path / "a", RECORDS)
    writer = RecordIOWriter(path)
    writer.write(b"new")

    def fail(*_):
        raise OSError("no space")

    monkeypatch.setattr(function, fail)
    with pytest.raises(OSError, match="no space"):
        writer.close()
    assert list(RecordIODataset(path)) == RECORDS
    assert sorted(one.name for one in tmp_path.iterdir()) == ["a", "a.index"]


def test_wrong_calls_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "a"
    with pytest.raises(ValueError, match="no compressor 'lzo'; use one of none"):
        RecordIOWriter(path, compressor="lzo")
    with pytest.raises(ValueError, match="chunk_nbytes must be from 1 to"):
        RecordIOWriter(path, chunk_nbytes=0)
    with pytest.raises(ValueError, match="on_corrupt must be 'raise' or 'skip'"):
        RecordIODataset(path, on_corrupt="ignore")
    with pytest.raises(ValueError, match="there is no file; name at least one"):
        RecordIODataset([])
    with pytest.raises(FileNotFoundError):
        RecordIODataset(path)
    with RecordIOWriter(path) as writer:
        with pytest.raises(TypeError, match="a record is bytes, got str; encode it"):
            writer.write("text")
        monkeypatch.setattr("bluecomm.data.recordio.writer.MOST_NBYTES", 104)
        with pytest.raises(ValueError, match="has at most 100 bytes, got 101"):
            writer.write(bytes(101))
        writer.write(b"")
        writer.write(bytes(100))  # begins a chunk, because both would exceed the limit
    assert len(scan_headers(str(path))) == 2
    writer.close()
    with pytest.raises(ValueError, match="is closed; make a new writer"):
        writer.write(b"")
    monkeypatch.setattr("bluecomm.data.recordio.chunk.MOST_NBYTES", 10)
    with pytest.raises(ValueError, match="a chunk of 1 records would have 15 bytes"):
        write(path, [bytes(11)])


def test_snappy_without_its_library_is_refused_at_the_start(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cramjam", None)
    with pytest.raises(ImportError, match="snappy needs the package cramjam"):
        RecordIOWriter(tmp_path / "a", compressor="snappy")
    assert not list(tmp_path.iterdir())
