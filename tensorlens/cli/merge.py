"""``tensorlens merge``: the snapshots of several processes as one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tensorlens.cli.output.file import Output, add_options
from tensorlens.cli.output.saved import add_view_options, read_snapshot, view_of, write_record
from tensorlens.errors import UsageError
from tensorlens.tensors.snapshot import Snapshot


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "merge",
        description="Put snapshots together, such as those of the ranks of a job. A device is"
        " called after its file: rank0.json's cuda:0 is rank0/cuda:0.",
    )
    parser.add_argument("files", metavar="[LABEL=]FILE", nargs="+", help="a snapshot, a .json file")
    add_options(parser, "the merged snapshot")
    add_view_options(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or write the merged snapshot; return 0.

    Raises:
        TensorlensError: a file cannot be read or is no snapshot, two have one label, or the
            output cannot be written.
    """
    view = view_of(args)
    output = Output.checked(args.output, args.force) if args.output else None
    files = _labelled(args.files)
    merged = Snapshot.merged({label: read_snapshot(name) for label, name in files.items()})
    write_record(merged, output, view)
    return 0


def _labelled(typed: Sequence[str]) -> dict[str, str]:
    """Return label to file; a file without a label is called by its name."""
    found: dict[str, str] = {}
    for each in typed:
        label, equals, name = each.partition("=")
        if not equals or os.path.lexists(each):
            label, name = Path(each).stem, each
        if not label or label in found:
            raise UsageError(f"{each}: the label {label!r} is taken or empty: write LABEL=FILE")
        found[label] = name
    return found
