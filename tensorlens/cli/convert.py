"""``tensorlens convert``: a file of one format as another."""

from __future__ import annotations

import argparse
from typing import Any

from tensorlens.cli.options import add_no_source
from tensorlens.cli.output import Output, damage_errors, read, say
from tensorlens.render import ENDINGS, RECORDING_ENDINGS, either


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "convert",
        description="Write a record in the format that OUT's ending names. Read are .json and"
        " .tlens files of tensorlens, the memory snapshots that torch pickles, in which no code"
        " is run, and traces of torch.profiler.",
    )
    parser.add_argument("file", metavar="IN", help="a .json, .tlens or .pickle file")
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        required=True,
        help=f"where to: {either(ENDINGS)}; recordings also {either(RECORDING_ENDINGS)}"
        " (.pickle is for pytorch.org/memory_viz)",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite OUT if it exists")
    add_no_source(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Write the record; return 0.

    Raises:
        TensorlensError: the file cannot be read, is no record, or cannot be written.
        UsageError: the ending is not known, or not for this kind of record.
    """
    output = Output.checked(args.output, args.force)
    record = read(args.file)
    with damage_errors(args.file):
        output.write(record)
    say(f"wrote {output.typed}")
    return 0
