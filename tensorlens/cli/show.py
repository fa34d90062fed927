"""``tensorlens show``: a saved record again, as text or in another format."""

from __future__ import annotations

import argparse
from typing import Any

from tensorlens.cli.output.file import Output, add_options
from tensorlens.cli.output.messages import waiting
from tensorlens.cli.output.saved import (
    add_instant_option,
    add_view_options,
    kind_text,
    view_of,
    write_record,
)
from tensorlens.errors import FileFormatError, TensorlensError, UsageError
from tensorlens.loading import load
from tensorlens.recording.recordings import Recording


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "show",
        description="Print what any command of tensorlens saved as .json or .tlens, or convert it"
        " with -o. A memory snapshot that torch pickled is read as a recording, without running"
        " code in it.",
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        help="a .json or .tlens that tensorlens wrote, or a .pickle of torch's memory history",
    )
    add_options(parser, "the report", recordings=True)
    add_view_options(parser)
    add_instant_option(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or convert the record; return 0.

    Raises:
        TensorlensError: the file cannot be read, is no record, or the output cannot be written.
        UsageError: an option that is not for this kind of record, or an instant that is none.
    """
    view = view_of(args)
    output = Output.checked(args.output, args.force) if args.output else None
    with waiting(f"reading {args.file}"):
        record = load(args.file)
    if args.at is not None and not isinstance(record, Recording):
        raise UsageError(f"--at is for recordings: {args.file} is {kind_text(record)}")
    try:
        with waiting("laying out the report"):
            write_record(record, output, view)
    except (TensorlensError, OSError):
        raise
    except Exception as error:  # figures of the wrong type are met only where they are used
        raise FileFormatError(f"{args.file}: damaged {record.KIND}: {error}") from None
    return 0
