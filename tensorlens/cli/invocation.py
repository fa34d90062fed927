"""How a verb was called that runs a program: what to type again, and where its answer goes."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass
from pathlib import Path

from tensorlens.cli.output import DocumentStream, Output
from tensorlens.cli.program import Program, program_of


@dataclass(frozen=True, slots=True)
class Invocation:
    """How a verb was called that runs a program, and where its answer goes."""

    program: Program
    words: list[str]
    """What names the program, and what is given to it."""
    command: list[str]
    """How tensorlens was called."""
    output: Output | None
    document: DocumentStream | None

    @classmethod
    def of(cls, args: argparse.Namespace, words: list[str], output: Output | None) -> Invocation:
        """Return it for the arguments of a verb; from here on the process is the program's.

        Raises:
            TensorlensError: the program cannot be found or read.
        """
        program = program_of(words)
        program.prepare()
        document = DocumentStream() if args.json else None
        return cls(program, words, shlex.split(args.parser.prog), output, document)

    def again(self, *options: str) -> str:
        """Return what to type to run the program once more."""
        return shlex.join([*self.command, *options, *self.words])

    def to_keep(self, what: str, *options: str) -> str:
        """Return what to type to have a file of what was printed."""
        program = self.program
        name = program.name.rpartition(".")[2] if program.spec else Path(program.name).stem
        return f"to keep {what}: {self.again(*options, '-o', f'{name}.json')}"

    def not_written(self) -> str:
        """Return what it means for the file that there is nothing to write."""
        return "" if self.output is None else f", so {self.output.typed} was not written"
