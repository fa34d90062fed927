"""``tensorlens show``: a saved report again, as text or in another format."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from tensorlens.cli.messages import say
from tensorlens.cli.output import Output, add_options
from tensorlens.errors import FileFormatError, TensorlensError
from tensorlens.records.lines import LineReport

_FOR_PEOPLE = {".csv", ".html", ".txt"}


def add_parser(subparsers: Any) -> None:
    """Add the verb to the ``tensorlens`` command line."""
    parser = subparsers.add_parser(
        "show",
        help="print a saved report again, or convert it",
        description="Print a report that tensorlens saved as .json, or convert it with -o.",
    )
    parser.add_argument("file", metavar="FILE", help="a .json file that tensorlens wrote")
    add_options(parser, "the report")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    """Print or convert the report; return 0.

    Raises:
        TensorlensError: the file cannot be read, is no report, or the output cannot be written.
    """
    output = Output.checked(args.output, args.force) if args.output else None
    report = read(args.file)
    try:
        if output is None:
            text = str(report)
        else:
            output.write(report)
    except TensorlensError:
        raise
    except Exception as error:  # figures of the wrong type are met only where they are used
        raise FileFormatError(f"{args.file}: damaged line report: {error}") from None
    if output is None:
        sys.stdout.write(text)
    else:
        say(f"wrote {output.typed}")
    return 0


def read(name: str) -> LineReport:
    """Return the report in a file.

    Raises:
        TensorlensError: there is no such file, or it cannot be read.
        FileFormatError: it is not a report that this tensorlens can read.
    """
    path = Path(name)
    if path.is_dir():
        raise TensorlensError(f"{name} is a folder: give a .json file that tensorlens wrote")
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        raise TensorlensError(f"there is no file {name}") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TensorlensError(f"cannot read {name}: {reason}") from None
    try:
        return LineReport.from_json(content.decode("utf-8"))
    except UnicodeDecodeError:
        raise FileFormatError(f"{name}: not a tensorlens report: it is not text") from None
    except FileFormatError as error:
        if path.suffix.lower() in _FOR_PEOPLE:
            raise FileFormatError(
                f"{name}: a {path.suffix} file cannot be shown again; keep the .json"
                " (tensorlens run -o FILE.json), which also converts to the others"
            ) from None
        raise FileFormatError(f"{name}: {error}") from None
