"""Options that several verbs share, and what they mean."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tensorlens import config
from tensorlens.cli.output import say
from tensorlens.errors import UsageError
from tensorlens.render.formats import ENDINGS, RECORDING_ENDINGS, either
from tensorlens.render.shown import View
from tensorlens.roles import BLOCK_ROLES
from tensorlens.units import parse_bytes


def add_output(parser: argparse.ArgumentParser, content: str, *, recordings: str = "") -> None:
    """Add ``-o``, which may be repeated, and what goes with it.

    Args:
        parser: of the verb.
        content: what is written.
        recordings: what may be written in the formats of recordings, where that is possible.
    """
    formats = f".json (can be shown again), {either(ENDINGS[1:])}"
    if recordings:
        formats += f"; {recordings} {either(RECORDING_ENDINGS)}"
    parser.add_argument(
        *("-o", "--output"),
        metavar="FILE",
        action="append",
        default=[],
        help=f"write {content} to FILE instead of printing; its ending names the format: {formats}",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite a file that exists")
    add_json(parser)
    add_no_source(parser)


def add_json(parser: argparse.ArgumentParser) -> None:
    """Add ``--json``."""
    parser.add_argument(
        "--json", action="store_true", help="print one JSON document and nothing else"
    )


def add_no_source(parser: argparse.ArgumentParser) -> None:
    """Add ``--no-source``."""
    parser.add_argument(
        "--no-source", action=_NoSource, nargs=0, help="leave out lines of source code"
    )


class _NoSource(argparse.Action):
    """Set TENSORLENS_SOURCE=0 for this process and its children."""

    def __call__(self, *_: object) -> None:
        os.environ["TENSORLENS_SOURCE"] = "0"
        config.current.cache_clear()


def add_view(parser: argparse.ArgumentParser) -> None:
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


def view_of(args: argparse.Namespace) -> View | None:
    """Return the requested view; None for the usual one.

    Raises:
        UsageError: a number or a size is malformed.
    """
    chosen: dict[str, Any] = {}
    if args.top is not None:
        chosen["top"] = _top(args.top)
    if args.min_size is not None:
        chosen["min_size"] = parse_bytes(args.min_size)
    for option, field in (("role", "roles"), ("device", "devices")):
        if getattr(args, option):
            chosen[field] = tuple(getattr(args, option))
    for option in ("verbose", "explain", "at"):
        if value := getattr(args, option, None):
            chosen[option] = value
    return View(**chosen) if chosen else None


def _top(text: str) -> int | None:
    if text.lower() in ("all", "none"):
        return None
    return whole_number(text, f"--top {text}: give a number of rows, or 'all'")


def whole_number(text: str, problem: str) -> int:
    """Parse a number of ASCII digits only.

    Raises:
        UsageError: it is malformed; ``problem`` is the message.
    """
    if not (text.isascii() and text.isdigit() and len(text) < 16):
        raise UsageError(problem)
    return int(text)


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
        args.parser.error(f"give a SCRIPT, or -m MODULE{_taken_as_value(args)}")
    return rest


def _taken_as_value(args: argparse.Namespace) -> str:
    """Return a hint if an option took a .py file that may be the script."""
    for action in args.parser._actions:
        value = getattr(args, action.dest, None) if action.option_strings else None
        for each in value if isinstance(value, list) else [value]:
            if isinstance(each, str) and each.endswith(".py"):
                return f": {each} was taken as what belongs to {action.option_strings[0]}"
    return ""


def note_options(
    parser: argparse.ArgumentParser, name: str, words: Sequence[str], source: bytes | None
) -> None:
    """Print a note on options of ours given to a program whose source does not name them.

    Args:
        parser: of the verb.
        name: the program's.
        words: given to it.
        source: of the program; if it is None, nothing is printed.
    """
    ours = {each for each in parser._option_string_actions if each not in ("-m", "-h", "--help")}
    given = dict.fromkeys(option for each in words if (option := each.partition("=")[0]) in ours)
    if source is None:
        return
    unnamed = [each for each in given if not re.search(f"""["']{each}["']""".encode(), source)]
    if unnamed:
        options = " ".join(unnamed)
        say(f"note: {options} after {name} goes to {name}; for tensorlens, put it before {name}")


def add_step_options(
    parser: argparse.ArgumentParser, numbers: Mapping[str, str], *, called: str = ""
) -> None:
    """Add options that are numbers, by name with their help, then ``--timeout`` and ``--set``."""
    for name, text in numbers.items():
        parser.add_argument(f"--{name}", metavar="N", type=int, help=text)
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=float, help="end a process after so many seconds"
    )
    add_set(parser, called=called)


def add_set(parser: argparse.ArgumentParser, *, called: str = "") -> None:
    """Add ``--set``; ``called`` is inserted after "the function" in its help."""
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
    from tensorlens.planning.compare.options import name_and_value

    return dict(name_and_value(each, "--set batch=32") for each in args.arguments)


def option_values(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Return the options that were given, by name."""
    return {name: getattr(args, name) for name in names if getattr(args, name) is not None}
