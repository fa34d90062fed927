"""``tensorlens merge``: the ranks of a job beside each other, or several snapshots as one."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorlens.cli.options import add_output, add_view, view_of
from tensorlens.cli.output import Output, damage_errors, read, show, write_record
from tensorlens.errors import UsageError
from tensorlens.jobs.merge import merged
from tensorlens.jobs.rank_report import rank_of
from tensorlens.tensors.snapshot import Snapshot


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "merge",
        description="Compare the ranks of a job: one recording, line report, leak report or"
        " snapshot of each, also torch's own memory snapshots and traces of torch.profiler. A rank"
        " is told by the file or by its name (run.rank3.tlens, 000003_step_10.pickle). Snapshots"
        " are put together as well: a device is called after its file, rank0.json's cuda:0 is"
        " rank0/cuda:0.",
    )
    parser.add_argument(
        "files",
        metavar="[LABEL=]FILE",
        nargs="+",
        help="a file of each rank; snapshots of any kind",
    )
    parser.add_argument("--ranks", action="store_true", help="of snapshots, only compare the ranks")
    add_output(parser, "the report")
    add_view(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or write what the files are together; return 0.

    Raises:
        TensorlensError: a file cannot be read, is of no known rank, two have one label or rank,
            or the output cannot be written.
    """
    view = view_of(args)
    outputs = Output.of_args(args)
    files = _labelled(args.files)
    records = {label: read(name) for label, name in files.items()}
    snapshots = {label: each for label, each in records.items() if isinstance(each, Snapshot)}
    of_files = {files[label]: each for label, each in records.items()}
    with damage_errors(*files.values()):
        if len(snapshots) == len(records) and not args.ranks:
            if not outputs and not args.json and _are_ranks(files, snapshots):
                write_record(merged(of_files), (), json=False)
                show("\n")
            write_record(Snapshot.merged(snapshots), outputs, view, json=args.json)
        else:
            write_record(merged(of_files), outputs, view, json=args.json)
    return 0


def _are_ranks(files: Mapping[str, str], records: Mapping[str, Any]) -> bool:
    ranks = [rank_of(record, files[label]) for label, record in records.items()]
    numbers = {rank[0] for rank in ranks if rank is not None}
    return len(numbers) == len(ranks)


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
