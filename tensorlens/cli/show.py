"""``tensorlens show``: a saved record again, as text or in another format."""

from __future__ import annotations

import argparse
from typing import Any

from tensorlens.cli.options import add_output, add_view, view_of
from tensorlens.cli.output import Output, damage_errors, kind_text, read, waiting, write_record
from tensorlens.errors import UsageError
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
        help="a .json or .tlens that tensorlens wrote, a .pickle of torch's memory history, or a"
        " trace of torch.profiler",
    )
    add_output(parser, "the report", recordings="of recordings also")
    add_view(parser)
    parser.add_argument_group("of recordings").add_argument(
        "--at",
        metavar="MARK|EVENT",
        help="what was resident at a mark (the last of that name) or after the event of a number,"
        " in place of the peak",
    )
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or convert the record; return 0.

    Raises:
        TensorlensError: the file cannot be read, is no record, or the output cannot be written.
        UsageError: an option that is not for this kind of record, or an instant that is none.
    """
    view = view_of(args)
    outputs = Output.of_args(args)
    record = read(args.file)
    if args.at is not None and not isinstance(record, Recording):
        raise UsageError(f"--at is for recordings: {args.file} is {kind_text(record)}")
    with damage_errors(args.file), waiting("laying out the report"):
        write_record(record, outputs, view, json=args.json)
    return 0
