"""The ``tensorlens`` command. Given a verb, it imports no other verb's module."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Sequence
from contextlib import suppress
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tensorlens.cli.output import complain, say
from tensorlens.errors import TensorlensError
from tensorlens.render.source import printable

QUESTIONS = {
    "while a program runs": {
        "run": "which line takes the memory; with --record also which moment",
        "leaks": "which tensors accumulate with each step, and what holds them",
        "top": "what holds the memory of a job that runs, live",
    },
    "before it runs": {
        "estimate": "how much GPU memory it will need, without the GPU",
        "compare": "what memory options save, and what they cost in time",
        "suggest": "which changes would save most at the peak",
        "plan": "how much batches of an input take, by size and resolution",
    },
    "with what was saved": {
        "show": "print a report again, or convert it",
        "diff": "what changed between two snapshots",
        "merge": "which rank of a job stands out, and by which tensor",
        "convert": "write a report in another format",
        "mcp": "let a coding assistant read reports by itself",
    },
    "on this machine": {
        "doctor": "what can be measured here, and how to get the rest",
    },
}
"""Verbs and the question each answers, grouped by when it is asked."""
VERBS = tuple(verb for verbs in QUESTIONS.values() for verb in verbs)
MODULES = {
    "suggest": "compare",
    "plan": "estimate",
    **dict.fromkeys(("show", "diff", "merge", "convert", "mcp"), "saved"),
}
"""Verb to its module, where names differ. ``add_<verb>`` of the module adds the verb's parser."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    Exceptions of a program started by ``tensorlens run`` propagate, so that it ends as it
    would without tensorlens.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(given)
    if given and not given[0].startswith("-") and given[0] not in VERBS:
        parser.error(_unknown_verb(given, parser.prog))
    args = parser.parse_args(given)
    if args.verb is None:
        parser.print_help()
        return 0
    if args.raises_for_the_program:
        return int(args.func(args))
    try:
        code = int(args.func(args))
        if sys.stdout is not None:
            sys.stdout.flush()
    except TensorlensError as error:
        return complain(_as_typed(error, parser))
    except BrokenPipeError:
        # the reader (``| head``) has seen enough; keep the flush at exit from complaining
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # e.g. a full disk: do not write the rest of the buffer at exit
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return complain(TensorlensError(f"{error.strerror or error}{_filename_suffix(error)}"))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return code


def _as_typed(error: TensorlensError, parser: argparse.ArgumentParser) -> TensorlensError:
    """Return an error that begins with an argument, ``top=0``, with the option: ``--top 0``."""
    text = str(error)
    argument = _ARGUMENT.match(text)
    option = "" if argument is None else f"--{argument[1].replace('_', '-')}"
    if argument is not None and option in _options(parser):
        error.args = (f"{option} {text[argument.end() :]}", *error.args[1:])
    return error


def _filename_suffix(error: OSError) -> str:
    return "" if error.filename is None else f": {os.fsdecode(error.filename)}"


def _unknown_verb(given: Sequence[str], program: str) -> str:
    word = printable(given[0])
    if Path(given[0]).suffix == ".py" or Path(given[0]).is_file():
        verb = "run" if Path(given[0]).suffix == ".py" else "show"
        meant = printable(shlex.join((program, verb, *given)))
        return f"{word} is no command; did you mean: {meant}"
    import tensorlens

    if given[0] in tensorlens.__all__:
        return f"{word} is no command: it is for Python, tensorlens.{word}(...)"
    near = get_close_matches(given[0], VERBS, 1)
    meant = f"did you mean {near[0]}?" if near else f"the commands are {', '.join(VERBS)}"
    return f"{word} is no command; {meant}"


_ARGUMENT = re.compile(r"([a-z_]+)= ?")
_UNRECOGNIZED = re.compile(r"unrecognized arguments: (--[^\s=]+)")


class _OneLineParser(argparse.ArgumentParser):
    verb = ""
    """The verb on the command line, for the hint at its help page."""

    def error(self, message: str) -> NoReturn:
        unknown = _UNRECOGNIZED.match(message)
        if unknown is not None:
            near = get_close_matches(unknown[1], _options(self), 1)
            message += f"; did you mean {near[0]}?" if near else ""
        page = f"{self.prog} {self.verb}".rstrip()
        self.exit(2, f"{self.prog}: error: {message} (see {page} --help)\n")


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    import tensorlens

    as_module = Path(sys.argv[0]).name == "__main__.py"
    parser = _OneLineParser(
        prog="python -m tensorlens" if as_module else "tensorlens",
        usage="%(prog)s COMMAND ...",
        description=_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = f"tensorlens {tensorlens.__version__}"
    parser.add_argument("--version", action="version", version=version)
    if given and given[0] in VERBS:
        parser.verb = given[0]
    parser.set_defaults(verb=None, raises_for_the_program=False)
    subparsers = parser.add_subparsers(
        prog=parser.prog, help=argparse.SUPPRESS, metavar="COMMAND", dest="verb"
    )
    for verb in _needed(given):
        module = import_module(f"tensorlens.cli.{MODULES.get(verb, verb)}")
        getattr(module, f"add_{verb}")(subparsers)
    return parser


def _help() -> str:
    parts = ["Which line, which tensor, which moment takes the memory."]
    for when, verbs in QUESTIONS.items():
        width = max(map(len, VERBS))
        rows = (f"  {verb:{width}}  {question}" for verb, question in verbs.items())
        parts.append("\n".join((f"{when}:", *rows)))
    parts.append("Each command has its own --help.")
    return "\n\n".join(parts)


def _options(parser: argparse.ArgumentParser) -> list[str]:
    """Return the options of a parser and of its commands."""
    found: list[str] = []
    for action in parser._actions:
        found += action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for below in action.choices.values():
                found += _options(below)
    return found


def _needed(given: Sequence[str]) -> Sequence[str]:
    if given and given[0] in VERBS:
        return given[:1]
    return () if given and given[0] == "--version" else VERBS
