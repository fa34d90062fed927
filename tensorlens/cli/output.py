"""The ``-o FILE`` that several verbs take: what can be refused is refused before any work."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.records.loading import Record
from tensorlens.records.snapshots import View
from tensorlens.render import OF_ALL, OF_RECORDINGS, either, renderer_for, save


@dataclass(frozen=True, slots=True)
class Output:
    """A file a report is to be written to."""

    typed: str
    """The path as the user typed it, for messages."""
    path: Path
    """The same, absolute: the program may change its folder."""
    overwrite: bool

    @classmethod
    def checked(cls, typed: str, overwrite: bool) -> Output:
        """Return the output, having loaded its renderer.

        Raises:
            UsageError: the ending is not known, or the file exists and is not to be overwritten.
            TensorlensError: its folder does not exist or cannot be written to.
        """
        renderer_for(typed)
        path = Path(typed).absolute()
        if path.is_dir():
            raise TensorlensError(f"cannot write {typed}: it is a folder")
        if not path.parent.is_dir():
            raise TensorlensError(f"cannot write {typed}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise TensorlensError(f"cannot write {typed}: the folder is read-only")
        if not overwrite and os.path.lexists(path):
            raise UsageError(f"{typed} exists: choose another name, or overwrite it with -f")
        return cls(typed, path, overwrite)

    def of_process(self, pid: int) -> Output:
        """Return the output of a child process: ``run.4711.json`` beside ``run.json``."""
        name = f"{self.path.stem}.{pid}{self.path.suffix}"
        path = self.path.with_name(name)
        return Output(str(Path(self.typed).with_name(name)), path, self.overwrite)

    def write(self, record: Record, view: View | None = None) -> None:
        """Write the record, whole or not at all; ``view`` is for files that people read.

        Raises:
            TensorlensError: it could not be written.
        """
        save(record, self.path, overwrite=self.overwrite, view=view)


def add_options(parser: argparse.ArgumentParser, content: str, *, recordings: bool = False) -> None:
    """Add ``-o`` and ``-f`` to a verb; ``recordings`` tells whether it may write any."""
    again = "can be shown again"
    formats = f".json ({again}), {either(OF_ALL[1:])}"
    if recordings:
        formats += f"; of recordings .json is a summary, .tlens {again}, and there are"
        formats += f" {either(OF_RECORDINGS)}"
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help=f"write {content} to FILE instead of printing; its ending names the format: {formats}",
    )
    parser.add_argument("-f", "--force", action="store_true", help="overwrite a file that exists")
