"""The ``-o FILE`` that several verbs take: what can be refused is refused before any work."""

from __future__ import annotations

import argparse
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tensorlens.cli.output.messages import show, waiting
from tensorlens.errors import TensorlensError, UsageError
from tensorlens.folders import temporary_folder
from tensorlens.guards import reason
from tensorlens.loading import Record
from tensorlens.ranks import Rank, current_rank
from tensorlens.render import OF_ALL, OF_RECORDINGS, either, renderer_for, save, tagged
from tensorlens.render.view import View


@dataclass(frozen=True, slots=True)
class Output:
    """A file a report is to be written to."""

    typed: str
    """The path as the user typed it, for messages."""
    path: Path
    """The same, absolute: the program may change its folder."""
    overwrite: bool
    rank: Rank | None = None
    """Of this process, where several write a file of this name."""

    @classmethod
    def checked(cls, typed: str, overwrite: bool) -> Output:
        """Return the output, having loaded its renderer.

        Raises:
            UsageError: the ending is not known, or the file exists and is not to be overwritten.
            TensorlensError: its folder does not exist or cannot be written to.
        """
        made = cls._in_folder(typed, overwrite, None)
        if not overwrite and os.path.lexists(made.path):
            raise UsageError(f"{typed} exists: choose another name, or overwrite it with -f")
        return made

    @classmethod
    def of_program(cls, typed: str, overwrite: bool) -> Output:
        """Return :meth:`checked` for what a program is run with, which may be one rank of several.

        Then the file is ``run.rank1.4711.json`` for ``run.json``: each rank has its own.

        Raises:
            TensorlensError: as :meth:`checked` does.
        """
        rank = current_rank()
        if rank is None:
            return cls.checked(typed, overwrite)
        return cls._in_folder(typed, overwrite, rank).of_process(os.getpid())

    @classmethod
    def _in_folder(cls, typed: str, overwrite: bool, rank: Rank | None) -> Output:
        renderer_for(typed)
        path = Path(typed).absolute()
        if path.is_dir():
            raise TensorlensError(f"cannot write {typed}: it is a folder")
        if not path.parent.is_dir():
            raise TensorlensError(f"cannot write {typed}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise TensorlensError(f"cannot write {typed}: the folder is read-only")
        return cls(typed, path, overwrite, rank)

    def of_process(self, pid: int) -> Output:
        """Return the output of one process: ``run.4711.json`` beside ``run.json``."""
        own = str(pid) if self.rank is None else f"rank{self.rank.number}.{pid}"
        name = tagged(self.path.name, own)
        typed = str(Path(self.typed).with_name(name))
        return Output(typed, self.path.with_name(name), self.overwrite, self.rank)

    def write(self, record: Record, view: View | None = None) -> None:
        """Write the record, whole or not at all; ``view`` is for files that people read.

        Raises:
            TensorlensError: it could not be written.
        """
        with waiting(f"writing {self.typed}"):
            save(record, self.path, overwrite=self.overwrite, view=view)

    def write_or_print(self, record: Record, view: View | None = None) -> str | None:
        """Write the record and return None, or do :meth:`instead` and return its line."""
        try:
            self.write(record, view)
        except Exception as error:
            return self.instead(record, view, error)
        return None

    def instead(self, record: Record, view: View | None, error: Exception) -> str:
        """Print a record that could not be written, and keep a copy among temporary files.

        Returns the line that says what went wrong, and what was done.
        """
        problem = reason(error)
        copy = self._copied(record, view)
        with suppress(Exception):
            from tensorlens.render.text import TextRenderer

            show(TextRenderer(view=view).render(record))
            done = "the figures are printed instead"
            return f"{problem}; {done}" if copy is None else f"{problem}; {done}, and are in {copy}"
        return f"{problem}; nothing was written" if copy is None else f"{problem}; wrote {copy}"

    def _copied(self, record: Record, view: View | None) -> Path | None:
        """Return the file below the folder for temporary files that was written instead."""
        folder = temporary_folder()
        if folder is None or folder.resolve() == self.path.parent.resolve():
            return None
        copy = folder / tagged(self.path.name, f"{os.getpid()}-{os.urandom(3).hex()}")
        try:
            return save(record, copy, view=view)
        except Exception:
            return None


def add_options(parser: argparse.ArgumentParser, content: str, *, recordings: bool = False) -> None:
    """Add ``-o`` and ``-f`` to a verb; ``recordings`` tells whether it may write any."""
    formats = f".json (can be shown again), {either(OF_ALL[1:])}"
    if recordings:
        formats += f"; of recordings also {either(OF_RECORDINGS)}"
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"write {content} to FILE instead of printing; its ending names the format: {formats}",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite a file that exists")
