"""Which program a verb is to run: the part of the command line that names it."""

from __future__ import annotations

import argparse

from tensorlens.cli.program import Program, module, script


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
