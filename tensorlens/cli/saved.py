"""The verbs for what was saved: ``show``, ``diff``, ``merge``, ``convert``, ``mcp``."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tensorlens.cli.options import add_no_source, add_output, add_view, view_of
from tensorlens.cli.output import (
    Output,
    damage_errors,
    kind_text,
    read,
    read_snapshot,
    say,
    show,
    waiting,
    write_record,
)
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.jobs.merge import merged
from tensorlens.jobs.rank_report import rank_of
from tensorlens.recording.recordings import Recording
from tensorlens.render.formats import ENDINGS, RECORDING_ENDINGS, either
from tensorlens.tensors.snapshot import Snapshot


def add_show(subparsers: Any) -> None:
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
    parser.set_defaults(func=_show)


def _show(args: argparse.Namespace) -> int:
    """Print or convert the record; return 0."""
    view = view_of(args)
    outputs = Output.of_args(args)
    record = read(args.file)
    if args.at is not None and not isinstance(record, Recording):
        raise UsageError(f"--at is for recordings: {args.file} is {kind_text(record)}")
    with damage_errors(args.file), waiting("laying out the report"):
        write_record(record, outputs, view, json=args.json)
    return 0


def add_diff(subparsers: Any) -> None:
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
    parser.set_defaults(func=_diff)


def _diff(args: argparse.Namespace) -> int:
    """Print or write the difference; return 0."""
    view = view_of(args)
    outputs = Output.of_args(args)
    before, after = read_snapshot(args.before), read_snapshot(args.after)
    with damage_errors(args.before, args.after):
        write_record(after - before, outputs, view, json=args.json)
    return 0


def add_merge(subparsers: Any) -> None:
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
    parser.set_defaults(func=_merge)


def _merge(args: argparse.Namespace) -> int:
    """Print or write what the files are together; return 0."""
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


def add_convert(subparsers: Any) -> None:
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
    parser.set_defaults(func=_convert)


def _convert(args: argparse.Namespace) -> int:
    """Write the record; return 0."""
    output = Output.checked(args.output, args.force)
    record = read(args.file)
    with damage_errors(args.file):
        output.write(record)
    say(f"wrote {output.typed}")
    return 0


def add_mcp(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "mcp",
        description="Serve saved reports to a coding assistant over standard input and output, by"
        " the Model Context Protocol. It reads files, runs no program, and opens no network port.",
    )
    add_no_source(parser)
    parser.set_defaults(func=_serve)


def _serve(args: argparse.Namespace) -> int:
    """Serve until the client leaves; return 0."""
    try:
        from tensorlens.integrations.mcp import main
    except ImportError:
        raise TensorlensError(
            "it needs the protocol's package: pip install 'tensorlens[mcp]'"
        ) from None
    main()
    return 0
