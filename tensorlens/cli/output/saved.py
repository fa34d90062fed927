"""Common parts of the verbs that show saved records: reading them, choosing what is shown."""

from __future__ import annotations

import argparse
from typing import Any

from tensorlens.cli.output.file import Output
from tensorlens.cli.output.messages import say, show, waiting
from tensorlens.errors import FileFormatError, TensorlensError, UsageError
from tensorlens.loading import Record, load
from tensorlens.render.view import View
from tensorlens.roles import BLOCK_ROLES
from tensorlens.tensors.snapshot import Snapshot
from tensorlens.units import parse_bytes


def add_view_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose which tensors are shown, and how fully."""
    group = parser.add_argument_group("of snapshots, differences and recordings")
    group.add_argument("--top", metavar="N", help="the N largest rows of each device, or 'all'")
    group.add_argument("--min-size", metavar="SIZE", help="rows of at least SIZE, as in '1 MiB'")
    group.add_argument(
        "--role",
        action="append",
        choices=BLOCK_ROLES,
        metavar="ROLE",
        help=f"only this role: {', '.join(BLOCK_ROLES)}; repeatable",
    )
    group.add_argument(
        "--device", action="append", metavar="NAME", help="only this device; repeatable"
    )
    group.add_argument(
        "-v", "--verbose", action="store_true", help="also views, strides, storages, births"
    )
    group.add_argument(
        "--explain", action="store_true", help="also explain each figure of the ledger"
    )


def add_instant_option(parser: argparse.ArgumentParser) -> None:
    """Add the option that chooses the instant of a recording."""
    parser.add_argument_group("of recordings").add_argument(
        "--at",
        metavar="MARK|EVENT",
        help="what was resident at a mark (the last of that name) or after the event of a number,"
        " in place of the peak",
    )


def view_of(args: argparse.Namespace) -> View | None:
    """Return the view that was asked for; None where nothing was, which shows the usual one.

    Raises:
        UsageError: a number or a size that is none.
    """
    chosen: dict[str, Any] = {}
    if args.top is not None:
        chosen["top"] = _top(args.top)
    if args.min_size is not None:
        chosen["min_size"] = parse_bytes(args.min_size)
    for option, field in (("role", "roles"), ("device", "devices")):
        if getattr(args, option):
            chosen[field] = tuple(getattr(args, option))
    for flag in ("verbose", "explain"):
        if getattr(args, flag):
            chosen[flag] = True
    if getattr(args, "at", None) is not None:
        chosen["at"] = args.at
    return View(**chosen) if chosen else None


def _top(text: str) -> int | None:
    if text.lower() in ("all", "none"):
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise UsageError(f"--top {text}: give a number of rows, or 'all'")
    return int(text)


def read(name: str) -> Record:
    """Return the record in a file, and say so where that takes long.

    Raises:
        TensorlensError: there is no such file, or it cannot be read.
    """
    with waiting(f"reading {name}"):
        return load(name)


def read_snapshot(name: str) -> Snapshot:
    """Return the snapshot in a file.

    Raises:
        TensorlensError: there is no such file, or it cannot be read.
        FileFormatError: it is no snapshot.
    """
    record = read(name)
    if not isinstance(record, Snapshot):
        raise FileFormatError(f"{name}: {kind_text(record)}, not a snapshot")
    return record


def kind_text(record: Record) -> str:
    """Return what a person calls the kind of a record, with its article: ``an estimate``."""
    article = "an" if record.KIND[0] in "aeiou" else "a"
    return f"{article} {record.KIND}"


def write_record(record: Record, output: Output | None, view: View | None) -> None:
    """Print a record, or write it where it was wanted.

    Raises:
        TensorlensError: it could not be written; then it is printed.
    """
    from tensorlens.render.text import TextRenderer

    if output is None:
        show(TextRenderer(view=view).render(record))
        return
    try:
        output.write(record, view)
    except UsageError:
        raise
    except TensorlensError as error:
        raise TensorlensError(output.instead(record, view, error)) from None
    say(f"wrote {output.typed}")
