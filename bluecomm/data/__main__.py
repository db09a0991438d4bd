"""``python -m bluecomm.data`` converts, indexes, checks and shows data files."""

from __future__ import annotations

import argparse
import itertools
import os
import sys
from collections.abc import Sequence

from bfrun.options import OptionParser
from bfrun.wording import count
from bluecomm.data.convert import convert, open_source
from bluecomm.data.corrupted_file import CorruptedFileError
from bluecomm.data.recordio.compressors import COMPRESSORS
from bluecomm.data.recordio.index import load_chunks, load_intact, write_index
from bluecomm.data.recordio.scan import scan_headers
from bluecomm.data.tar.sample_index import scan_tar

_SHOWN_BYTES = 60


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand.

    Args:
        argv: Command-line arguments. Default: ``sys.argv[1:]``.

    Returns:
        0; 1 if ``check`` found damage; 2 if a file cannot be read or written.
    """
    args = _parser().parse_args(argv)
    try:
        code: int = args.run(args)
    except (ImportError, OSError, TypeError, ValueError) as error:
        print(f"bluecomm.data: {error}", file=sys.stderr)
        return 2
    return code


def _parser() -> argparse.ArgumentParser:
    parser = OptionParser(
        prog="python -m bluecomm.data",
        description="Converts, indexes, checks and shows RecordIO and tar files.",
    )
    commands = parser.add_subparsers(metavar="SUBCOMMAND", required=True)
    one = commands.add_parser("convert", help="write samples into a file")
    one.add_argument(
        "sources",
        nargs="+",
        metavar="SOURCE",
        help="RecordIO file, .tar file, or MODULE:FUNCTION that returns a dataset",
    )
    one.add_argument("target", help="a tar file if it ends with .tar, else RecordIO")
    one.add_argument(
        "--field",
        default="bin",
        help="extension of a tar file's field that holds the record (default: bin)",
    )
    one.add_argument("--compressor", choices=list(COMPRESSORS), default="none")
    one.add_argument(
        "--chunk-kb",
        type=int,
        default=1024,
        help="KiB of records in a chunk (default: 1024)",
    )
    one.set_defaults(run=_convert)
    for name, run, text in (
        ("index", _index, "write the index of RecordIO files"),
        ("check", _check, "read whole files and list the damage"),
        ("show", _show, "print how many samples a file has, and the first ones"),
    ):
        one = commands.add_parser(name, help=text)
        one.add_argument("files", nargs="+", metavar="FILE")
        one.set_defaults(run=run)
        if name == "show":
            one.add_argument("-n", "--samples", type=int, default=3, help="default: 3")
    return parser


def _convert(args: argparse.Namespace) -> int:
    written = convert(
        args.sources,
        args.target,
        field=args.field,
        compressor=args.compressor,
        chunk_nbytes=args.chunk_kb << 10,
    )
    print(f"{args.target}: {count(written, 'sample')}")
    return 0


def _index(args: argparse.Namespace) -> int:
    for path in args.files:
        chunks = scan_headers(path)
        write_index(path, chunks)
        records = sum(chunk.records for chunk in chunks)
        print(f"{path}: {count(records, 'record')} in {count(len(chunks), 'chunk')}")
    return 0


def _check(args: argparse.Namespace) -> int:
    code = 0
    for path in args.files:
        samples, damage = _intact_samples(path)
        for one in damage:
            code = 1
            print(f"{path}: at byte {one.offset}: {one.reason}")
        print(f"{path}: {count(samples, 'sample')} intact")
    return code


def _intact_samples(path: str) -> tuple[int, list[CorruptedFileError]]:
    if path.endswith(".tar"):
        samples, error = scan_tar(path)
        return len(samples), [] if error is None else [error]
    chunks, damage = load_intact(path)
    return sum(chunk.records for chunk in chunks), damage


def _show(args: argparse.Namespace) -> int:
    for path in args.files:
        if path.endswith(".tar"):
            samples, kind = _intact_samples(path)[0], "tar"
        else:
            chunks = load_chunks(path)
            samples = sum(chunk.records for chunk in chunks)
            kind = f"RecordIO, {count(len(chunks), 'chunk')}"
        size = os.stat(path).st_size
        print(f"{path}: {count(samples, 'sample')}, {size} bytes, {kind}")
        for number, sample in enumerate(
            itertools.islice(open_source(path), args.samples)
        ):
            print(f"  {number}: {_describe(sample)}")
    return 0


def _describe(sample: object) -> str:
    if isinstance(sample, dict):
        fields = (
            f"{name}={data!r}" if name == "__key__" else f"{name}={len(data)} bytes"
            for name, data in sample.items()
        )
        return " ".join(fields)
    assert isinstance(sample, bytes)
    dots = "..." if len(sample) > _SHOWN_BYTES else ""
    return f"{len(sample)} bytes {sample[:_SHOWN_BYTES]!r}{dots}"


if __name__ == "__main__":
    sys.exit(main())
