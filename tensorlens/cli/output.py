"""Output of verbs: messages on standard error, answers, and files of ``-o``."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Timer
from typing import Any

from tensorlens import config
from tensorlens.errors import FileFormatError, TensorlensError, UsageError
from tensorlens.folders import temporary_folder
from tensorlens.guards import reason
from tensorlens.loading import Record, load
from tensorlens.ranks import current_rank, tag
from tensorlens.render.formats import ENDINGS, READ_AGAIN, checked_ending, ending_of, save, tagged
from tensorlens.render.shown import View
from tensorlens.render.source import printable
from tensorlens.streams import for_stream, write
from tensorlens.tensors.snapshot import Snapshot

_PATIENCE = 2.0
"""Seconds before :func:`waiting` prints."""


def say(text: str) -> None:
    """Print one line on standard error, if it is open."""
    # names of files and functions may hold terminal escapes
    line = printable(" ".join(text.split("\n")))
    with suppress(OSError, ValueError, AttributeError):
        write(f"tensorlens: {line}\n", sys.stderr)


def show(text: str) -> None:
    """Print an answer on standard output, if it is open.

    Raises:
        TensorlensError: it could not be written.
        BrokenPipeError: its reader has closed it.
    """
    try:
        write(for_stream(text, sys.stdout), sys.stdout)
    except BrokenPipeError:
        raise
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise TensorlensError(f"cannot write to standard output: {why}") from None


def show_details(details: str) -> None:
    """Print the last output of a failed program on standard error."""
    if details and sys.stderr is not None:
        sys.stderr.write(details.rstrip("\n") + "\n")


def complain(error: TensorlensError) -> int:
    """Print an error of tensorlens's own and return its exit code."""
    show_details(getattr(error, "details", ""))
    say(f"error: {error}")
    return error.exit_code


class DocumentStream:
    """Standard output, reserved for one JSON document while a program runs.

    Once it is created, this process and its children write to standard error instead.
    """

    def __init__(self) -> None:
        self._descriptor: int | None = None
        self._file: tuple[int, int] | None = None
        # one that is closed stays closed
        with suppress(OSError, ValueError, AttributeError):
            sys.stdout.flush()
            self._descriptor = os.dup(1)
            self._file = _file_of(self._descriptor)
            os.dup2(2, 1)

    def write(self, record: Record) -> None:
        """Write the document, unless this rank of a job prints no tables either."""
        if self._descriptor is None or not config.prints_tables():
            return
        # the number may be that of a file of the program by now
        if _file_of(self._descriptor) != self._file:
            say("error: the document is lost: the program closed the descriptor kept for it")
            return
        content = f"{record.to_json()}\n".encode("utf-8", "backslashreplace")
        try:
            with os.fdopen(self._descriptor, "wb") as stream:
                stream.write(content)
        except BrokenPipeError:
            pass
        except OSError as error:
            say(f"error: cannot write to standard output: {error.strerror}")


def _file_of(descriptor: int) -> tuple[int, int] | None:
    """Return device and inode of an open descriptor; None if it is closed."""
    try:
        status = os.fstat(descriptor)
    except OSError:
        return None
    return status.st_dev, status.st_ino


@contextmanager
def waiting(doing: str) -> Iterator[None]:
    """Print what is being done if it takes longer than :data:`_PATIENCE`."""
    timer = Timer(_PATIENCE, say, (f"{doing} …",))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


@dataclass(frozen=True, slots=True)
class Output:
    """A file a report is to be written to."""

    typed: str
    """The path as the user typed it, for messages."""
    path: Path
    """The same, absolute: the program may change its folder."""
    overwrite: bool

    @classmethod
    def checked(cls, typed: str, overwrite: bool, *, per_rank: bool = False) -> Output:
        """Return the output; what cannot be written is refused before any work.

        Args:
            typed: the path.
            overwrite: overwrite a file that exists.
            per_rank: a rank of a job writes a file of its own: ``run.rank1.4711.json`` for
                ``run.json``.

        Raises:
            UsageError: the ending is not known, or the file exists and is not to be overwritten.
            TensorlensError: its folder does not exist or cannot be written to.
        """
        checked_ending(typed)
        path = Path(typed).absolute()
        if path.is_dir():
            raise TensorlensError(f"cannot write {typed}: it is a folder")
        if not path.parent.is_dir():
            raise TensorlensError(f"cannot write {typed}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise TensorlensError(f"cannot write {typed}: the folder is read-only")
        if per_rank and current_rank() is not None:
            name = tagged(path.name, tag())
            return cls(str(Path(typed).with_name(name)), path.with_name(name), overwrite)
        if not overwrite and os.path.lexists(path):
            raise UsageError(f"{typed} exists: choose another name, or overwrite it with -f")
        return cls(typed, path, overwrite)

    @classmethod
    def of_args(cls, args: Any) -> list[Output]:
        """Return :meth:`checked` for each ``-o`` of a verb."""
        return [cls.checked(typed, args.force) for typed in dict.fromkeys(args.output)]

    @classmethod
    def of_report(cls, args: Any, otherwise: str) -> Output | None:
        """Return :meth:`checked` for the ``-o`` of a verb that runs a program; None without.

        Raises:
            UsageError: as :meth:`checked`, or a format of recordings; ``otherwise`` ends the text.
        """
        if not args.output:
            return None
        typed, *others = args.output
        if others:
            args.parser.error("-o is given twice: this command writes one file")
        if checked_ending(typed) not in ENDINGS:
            raise UsageError(f"-o {typed}{otherwise}")
        return cls.checked(typed, args.force, per_rank=True)

    def next_step(self, command: Sequence[str]) -> str:
        """Return what to type next to look at the file; ``command`` is how the verb was called."""
        name, ending = shlex.quote(self.typed), ending_of(self.path.name)
        if ending in READ_AGAIN:
            return f"next: {shlex.join([*command[:-1], 'show'])} {name}"
        if ending == "html":
            return f"next: open {name} in a browser"
        return f"next: {'less' if ending == 'txt' else 'head'} {name}"

    def write(self, record: Record, view: View | None = None) -> None:
        """Write the record, whole or not at all; ``view`` is for files that people read.

        Raises:
            TensorlensError: it could not be written.
        """
        with waiting(f"writing {self.typed}"):
            save(record, self.path, overwrite=self.overwrite, view=view)

    def deliver(self, record: Record, answer: str) -> None:
        """Write the record and say so with ``answer``, or print it and say what went wrong."""
        try:
            self.write(record)
        except Exception as error:
            say(f"error: {self.instead(record, None, error)}")
        else:
            say(f"wrote {self.typed}{answer}")

    def instead(self, record: Record, view: View | None, error: Exception) -> str:
        """Print a record that could not be written, and keep a copy among temporary files.

        Returns the line that says what went wrong, and what was done.
        """
        problem, copy = reason(error), self._copied(record, view)
        with suppress(Exception):
            from tensorlens.render.text import TextRenderer

            show(TextRenderer(view=view).render(record))
            done = "the figures are printed instead"
            return f"{problem}; {done}" if copy is None else f"{problem}; {done}, and are in {copy}"
        return f"{problem}; nothing was written" if copy is None else f"{problem}; wrote {copy}"

    def _copied(self, record: Record, view: View | None) -> Path | None:
        """Write a copy into the folder for temporary files and return its path, or None."""
        folder = temporary_folder()
        if folder is None or folder.resolve() == self.path.parent.resolve():
            return None
        copy = folder / tagged(self.path.name, f"{os.getpid()}-{os.urandom(3).hex()}")
        try:
            return save(record, copy, view=view)
        except Exception:
            return None


def read(name: str) -> Record:
    """Return the record in a file, and say so where that takes long.

    Raises:
        TensorlensError: there is no such file, or it cannot be read.
    """
    with waiting(f"reading {name}"):
        return load(name)


def read_snapshot(name: str) -> Snapshot:
    """Return the snapshot in a file.

    Raises:
        TensorlensError: there is no such file, or it cannot be read.
        FileFormatError: it is no snapshot.
    """
    record = read(name)
    if not isinstance(record, Snapshot):
        raise FileFormatError(f"{name}: {kind_text(record)}, not a snapshot")
    return record


def kind_text(record: Record) -> str:
    """Return what a person calls the kind of a record, with its article: ``an estimate``."""
    article = "an" if record.KIND[0] in "aeiou" else "a"
    return f"{article} {record.KIND}"


@contextmanager
def damage_errors(*files: str) -> Iterator[None]:
    """Report in one line an exception that damaged figures of a record raise.

    Raises:
        FileFormatError: in place of any exception but an :exc:`OSError` and our own.
    """
    try:
        yield
    except (TensorlensError, OSError):
        raise
    except Exception as error:  # figures of the wrong type are met only where they are used
        raise FileFormatError(f"{' or '.join(files)}: damaged: {error}") from None


def show_record(record: Record, *, json: bool, view: View | None) -> None:
    """Print a record as text, or as a JSON document.

    Raises:
        TensorlensError: it could not be written.
    """
    from tensorlens.render.text import TextRenderer

    show(f"{record.to_json()}\n" if json else TextRenderer(view=view).render(record))


def write_record(
    record: Record,
    outputs: Sequence[Output],
    view: View | None = None,
    *,
    json: bool,
    answer: Callable[[], str] | None = None,
) -> None:
    """Print a record, or write it where it was wanted; with ``json`` it is printed as well.

    Args:
        record: what was asked for.
        outputs: where to write it.
        view: how text and pages show it.
        json: print it as a document.
        answer: returns a short text on a record that took long to make; None if it did not.

    Raises:
        TensorlensError: it could not be written; then it is printed.
        UsageError: a format is not for this kind of record, which took no time to make.
    """
    if json or not outputs:
        show_record(record, json=json, view=view)
    problems = []
    for output in outputs:
        try:
            output.write(record, view)
        except Exception as error:
            if answer is None and isinstance(error, UsageError):
                raise
            problems.append(reason(error) if json else output.instead(record, view, error))
        else:
            say(f"wrote {output.typed}" + ("" if answer is None else f": {answer()}"))
    if problems:
        raise TensorlensError("; ".join(problems))
