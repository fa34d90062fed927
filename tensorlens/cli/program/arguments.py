"""The part of the command line that names a program: which, how many steps, which arguments."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from tensorlens.cli.program.execution import Program, module, script
from tensorlens.planning.compare.options import pair


def add_program(parser: argparse.ArgumentParser) -> None:
    """Add ``-m MODULE`` and ``SCRIPT``, each with all that follows."""
    parser.add_argument(
        "-m",
        dest="module",
        nargs=argparse.REMAINDER,
        metavar="MODULE",
        help="run a module, as python -m does; all that follows is given to it",
    )
    parser.add_argument(
        "script",
        nargs=argparse.REMAINDER,
        metavar="SCRIPT ARGS",
        help="the program and what is given to it",
    )


def words_of(args: argparse.Namespace) -> list[str]:
    """Return the words that name the program; without any it is a usage error."""
    if args.module:
        return ["-m", *args.module]
    rest: list[str] = args.script[1:] if args.script[:1] == ["--"] else args.script
    if not rest:
        args.parser.error("give a SCRIPT, or -m MODULE")
    return rest


def program_of(args: argparse.Namespace, words: list[str]) -> Program:
    """Return the program that the words name.

    Raises:
        TensorlensError: it cannot be found or read.
    """
    if args.module:
        return module(args.module[0], args.module[1:])
    return script(words[0], words[1:])


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
        "--timeout", metavar="SECONDS", type=float, help="end a process after so many seconds"
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
