"""The ``tensorlens`` command: one module a verb, imported only when it is asked for."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from tensorlens.cli.output.messages import complain, say
from tensorlens.errors import TensorlensError

VERBS = (
    *("run", "leaks", "estimate", "compare", "suggest", "plan"),
    *("show", "diff", "merge", "convert", "doctor"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code.

    What a program started by ``tensorlens run`` raises passes through, so that it ends as it
    would without tensorlens.
    """
    given = list(sys.argv[1:] if argv is None else argv)
    parser = _parser(given)
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
        return complain(error)
    except BrokenPipeError:
        # the reader (``| head``) has seen enough; keep the flush at exit from complaining
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        # a disk that is full: what is left in the buffer is not tried again at exit
        with suppress(OSError, ValueError, AttributeError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return complain(TensorlensError(f"{error.strerror or error}{_place(error)}"))
    except KeyboardInterrupt:
        say("interrupted")
        return 130
    return code


def _place(error: OSError) -> str:
    return "" if error.filename is None else f": {os.fsdecode(error.filename)}"


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    import tensorlens

    as_module = Path(sys.argv[0]).name == "__main__.py"
    parser = _OneLineParser(
        prog="python -m tensorlens" if as_module else "tensorlens",
        description="Which line, which tensor, which moment takes the memory.",
    )
    version = f"tensorlens {tensorlens.__version__}"
    parser.add_argument("--version", action="version", version=version)
    parser.set_defaults(verb=None, raises_for_the_program=False)
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="verb")
    for verb in _needed(given):
        import_module(f"tensorlens.cli.{verb}").add_parser(subparsers)
    return parser


def _needed(given: Sequence[str]) -> Sequence[str]:
    if given and given[0] in VERBS:
        return given[:1]
    return () if given and given[0] == "--version" else VERBS
