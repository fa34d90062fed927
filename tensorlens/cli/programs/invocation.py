"""Call of a verb that runs a program: its command line and the destination of its answer."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tensorlens.cli.output import DocumentStream, Output, say
from tensorlens.cli.programs.program import Program, program_of


@dataclass(frozen=True, slots=True)
class Invocation:
    """Call of a verb that runs a program, and the destination of its answer."""

    program: Program
    words: list[str]
    """Program and its arguments, as typed."""
    command: list[str]
    """How tensorlens was called."""
    output: Output | None
    document: DocumentStream | None

    @classmethod
    def of(cls, args: argparse.Namespace, words: list[str], output: Output | None) -> Invocation:
        """Return the call for a verb's arguments, and prepare the process for the program.

        Raises:
            TensorlensError: the program cannot be found or read.
        """
        program = program_of(words)
        note_options(args.parser, program.name, program.argv[1:], program.content)
        program.prepare()
        document = DocumentStream() if args.json else None
        return cls(program, words, shlex.split(args.parser.prog), output, document)

    def again(self, *options: str) -> str:
        """Return the command line that runs the program again."""
        return shlex.join([*self.command, *options, *self.words])

    def to_keep(self, what: str, *options: str) -> str:
        """Return a hint how to save what was printed."""
        program = self.program
        name = program.name.rpartition(".")[2] if program.spec else Path(program.name).stem
        return f"to keep {what}: {self.again(*options, '-o', f'{name}.json')}"

    def not_written(self) -> str:
        """Return the end of a message that says that the file was not written."""
        return "" if self.output is None else f", so {self.output.typed} was not written"


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
