"""``tensorlens show``: a saved record again, as text or in another format."""

from __future__ import annotations

import argparse
from typing import Any

from tensorlens.cli.output import Output, add_options
from tensorlens.cli.viewing import add_view_options, called, give, view_of
from tensorlens.errors import FileFormatError, TensorlensError
from tensorlens.records.loading import load


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "show",
        help="print a saved report again, or convert it",
        description="Print what tensorlens saved as .json, or convert it with -o:"
        " line reports, snapshots, differences.",
    )
    parser.add_argument("file", metavar="FILE", help="a .json file that tensorlens wrote")
    add_options(parser, "the report")
    add_view_options(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or convert the record; return 0.

    Raises:
        TensorlensError: the file cannot be read, is no record, or the output cannot be written.
    """
    view = view_of(args)
    output = Output.checked(args.output, args.force) if args.output else None
    record = load(args.file)
    try:
        give(record, output, view)
    except (TensorlensError, OSError):
        raise
    except Exception as error:  # figures of the wrong type are met only where they are used
        raise FileFormatError(f"{args.file}: damaged {called(record)}: {error}") from None
    return 0
