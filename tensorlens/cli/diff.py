"""``tensorlens diff``: what changed between two saved snapshots."""

from __future__ import annotations

import argparse
from typing import Any

from tensorlens.cli.options import add_output, add_view, view_of
from tensorlens.cli.output import Output, damage_errors, read_snapshot, write_record


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "diff",
        description="Print which tensors appeared, went or changed their size between two"
        " snapshots, or write it with -o.",
    )
    parser.add_argument("before", metavar="BEFORE", help="the earlier snapshot, a .json file")
    parser.add_argument("after", metavar="AFTER", help="the later snapshot, a .json file")
    add_output(parser, "the difference")
    add_view(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the difference; return 0.

    Raises:
        TensorlensError: a file cannot be read or is no snapshot, or the output cannot be written.
    """
    view = view_of(args)
    outputs = Output.of_args(args)
    before, after = read_snapshot(args.before), read_snapshot(args.after)
    with damage_errors(args.before, args.after):
        write_record(after - before, outputs, view, json=args.json)
    return 0
