"""What the verbs that run a program's steps share: how many, and with which arguments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tensorlens.planning.compare.options import pair


def add_step_options(
    parser: argparse.ArgumentParser, numbers: Mapping[str, str], *, called: str = ""
) -> None:
    """Add options that are numbers, by name with their help, then ``--timeout`` and ``--set``.

    Args:
        parser: of the verb.
        numbers: name of an option to its help.
        called: as of :func:`add_set_option`.
    """
    for name, text in numbers.items():
        parser.add_argument(f"--{name}", metavar="N", type=int, help=text)
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="after which a process is ended"
    )
    add_set_option(parser, called=called)


def add_set_option(parser: argparse.ArgumentParser, *, called: str = "") -> None:
    """Add ``--set``; ``called`` is what its help says of when the function is called so."""
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        dest="arguments",
        help=f"a keyword argument of the function{called}, as Python has it, else text; repeatable",
    )


def arguments_of(args: argparse.Namespace) -> dict[str, Any]:
    """Return the keyword arguments that ``--set`` gives.

    Raises:
        UsageError: one is not ``NAME=VALUE``.
    """
    return dict(pair(each, "--set batch=32") for each in args.arguments)
