"""A verb's run of a program: its command line, when it ends, and the destination of its answer."""

from __future__ import annotations

import argparse
import shlex
from abc import ABC, abstractmethod
from pathlib import Path
from typing import ClassVar

from tensorlens.cli.options import note_options, words_of
from tensorlens.cli.output import DocumentStream, Output, complain
from tensorlens.cli.programs.instrument import Instrument
from tensorlens.cli.programs.program import plain_code, program_of
from tensorlens.errors import TensorlensError
from tensorlens.lines.exit_report import ExitReport


class ProgramSession(ABC):
    """Run of a program by a verb, which reports when the process ends.

    Raises:
        TensorlensError: the program cannot be found or read, or the answer cannot be written.
    """

    otherwise: ClassVar[str]
    """End of the message that refuses a format of recordings."""
    instrument: Instrument

    def __init__(self, args: argparse.Namespace) -> None:
        self._words = words_of(args)
        """Program and its arguments, as typed."""
        self.output = Output.of_report(args, self.otherwise)
        self.program = program = program_of(self._words)
        note_options(args.parser, program.name, program.argv[1:], program.content)
        program.prepare()
        self.command = shlex.split(args.parser.prog)
        """How tensorlens was called."""
        self.document = DocumentStream() if args.json else None
        self.exit_report = ExitReport(self.at_exit)

    @classmethod
    def main(cls, args: argparse.Namespace) -> int:
        """Run the program; return the exit code, or raise what the program raises.

        Errors of our own give 1 or 2.
        """
        try:
            session = cls(args)
            session.start()
        except TensorlensError as error:
            return complain(error)
        return session.run()

    def start(self) -> None:
        """Take part in imports, and report when the process ends."""
        self.exit_report.install()
        if self.instrument.targets:
            self.instrument.install()

    @abstractmethod
    def run(self) -> int:
        """Run the program and return the exit code; its exceptions propagate."""

    def execute(self) -> None:
        """Run the program; its exceptions propagate."""
        has_targets = bool(self.instrument.targets)
        self.program.execute(self.instrument.compile_program if has_targets else plain_code)

    @abstractmethod
    def at_exit(self, process: str | None) -> None:
        """Report; ``process`` names a worker process."""

    def again(self, *options: str) -> str:
        """Return the command line that runs the program again."""
        return shlex.join([*self.command, *options, *self._words])

    def to_keep(self, what: str, *options: str) -> str:
        """Return a hint how to save what was printed."""
        program = self.program
        name = program.name.rpartition(".")[2] if program.spec else Path(program.name).stem
        return f"to keep {what}: {self.again(*options, '-o', f'{name}.json')}"

    def not_written(self) -> str:
        """Return the end of a message that says that the file was not written."""
        return "" if self.output is None else f", so {self.output.typed} was not written"
