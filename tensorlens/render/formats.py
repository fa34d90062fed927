"""The formats of a report: the endings of files, and what writes each, imported when asked for."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.render.shown import permitted

if TYPE_CHECKING:
    from tensorlens.render.blocks import Block
    from tensorlens.render.shown import Shown, View

ENDINGS = ("json", "html", "csv", "txt")
"""Endings of files for every kind of record."""
RECORDING_ENDINGS = (
    *("folded", "perfetto.json", "pickle", "speedscope.json"),
    *("tlens", "tlens.gz", "trace.json"),
)
"""Endings for recordings only; an estimate is written as its recording."""
READ_AGAIN = ("json", "tlens", "tlens.gz", "pickle")
"""Endings that ``tensorlens.load()`` reads."""
_WRITERS = {
    "csv": "tensorlens.render.flat",
    "html": "tensorlens.render.html",
    "txt": "tensorlens.render.text",
}
_KNOWN = (*ENDINGS, *RECORDING_ENDINGS)


def either(endings: Sequence[str]) -> str:
    """Return endings as text: ``.json, .html, .csv or .txt``."""
    *first, last = (f".{each}" for each in endings)
    return f"{', '.join(first)} or {last}" if first else last


def checked_ending(path_or_ending: str | os.PathLike[str]) -> str:
    """Return the ending of a file, given as ``"run.html"``, ``".html"`` or ``"html"``.

    The module that writes it is imported now: a program that runs next may prevent that later.

    Raises:
        UsageError: the ending is unknown.
    """
    name = Path(path_or_ending).name
    ending = ending_of(name)
    if ending is None:
        known = ", ".join(f".{each}" for each in sorted(_KNOWN))
        raise UsageError(f"cannot tell the format of {name!r}: the endings known are {known}")
    if ending in _WRITERS:
        import_module(_WRITERS[ending])
    return ending


def file_content(record: Any, ending: str, view: View | None = None) -> str | bytes:
    """Return the content of a file; text is to be written as UTF-8, newlines as they are.

    Args:
        record: the record.
        ending: a known ending. ``json`` is read back equal; of a recording or an estimate it has
            the results, which other programs can read, and the events in packed form.
        view: choices for files that people read; data is always written whole.

    Raises:
        UsageError: the format is for recordings, and the record has none.
    """
    if ending == "json":
        return f"{record.to_json()}\n"
    if ending == "csv":
        from tensorlens.render.flat import csv_text

        return csv_text(record)
    if ending == "html":
        from tensorlens.render.html import html_page

        return html_page(record, view)
    if ending == "txt":
        from tensorlens.render.text import TextRenderer

        # a file is not the terminal this happens to run in
        return TextRenderer(120, "utf-8", view, tells_run=True).render(record)
    record = permitted(record)
    exported = getattr(record.presenter(), "exported", None)
    if exported is None:
        raise UsageError(f".{ending} is for recordings: save this one as .json")
    content: str | bytes = exported(record, ending)
    return content


def ending_of(name: str) -> str | None:
    """Return the longest known ending of a name: ``tlens.gz`` of ``run.tlens.gz``, or None."""
    parts = name.lower().split(".")
    endings = (".".join(parts[first:]) for first in range(len(parts)))
    return next((ending for ending in endings if ending in _KNOWN), None)


def tagged(name: str, tag: str) -> str:
    """Return a file's name with a tag before its ending: ``run.4711.tlens.gz``."""
    ending = ending_of(name)
    if ending is None:
        return f"{name}.{tag}"
    start = name[: -len(ending) - 1]
    return f"{start}.{tag}{name[len(start) :]}"


def save(
    record: Shown,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    view: View | None = None,
) -> Path:
    """Write ``record`` to ``path`` in the format its ending names, whole or not at all.

    Args:
        record: the record.
        path: the file; its ending names the format.
        overwrite: replace a file that exists.
        view: choices for files that people read; data is always written whole.

    Returns:
        The path written.

    Raises:
        UsageError: the ending is unknown, or the file exists and ``overwrite`` is not set.
        TensorlensError: the file could not be written; nothing is left behind.
    """
    ending = checked_ending(path)
    target = Path(path)
    if not overwrite and os.path.lexists(target):
        raise UsageError(f"{target} exists: choose another name, or overwrite it with -f")
    written = file_content(record, ending, view)
    if isinstance(written, str):
        # a file name that is no valid text reaches the report as lone surrogates
        written = written.encode("utf-8", "backslashreplace")
    try:
        write_whole(target, written)
    except OSError as error:
        raise TensorlensError(f"cannot write {target}: {error.strerror or error}") from None
    return target


def text_of_blocks(blocks: Sequence[Block]) -> str:
    """Return blocks as text, as wide as the terminal."""
    from tensorlens.render.text import TextRenderer

    return TextRenderer().render_blocks(blocks)


def write_whole(target: Path, content: bytes) -> None:
    """Write a file whole or not at all: if the process is killed, the old file stays.

    Raises:
        OSError: it could not be written; nothing is left behind.
    """
    # through a symbolic link, as an ordinary write would go
    target = Path(os.path.realpath(target))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if target.is_dir():
        raise IsADirectoryError(None, "it is a folder")
    if target.exists() and not target.is_file():
        # a device or a pipe cannot be replaced
        target.write_bytes(content)
        return
    temporary = target.with_name(f".tensorlens-{os.getpid()}-{os.urandom(4).hex()}.tmp")
    try:
        # opened by hand so that the file gets the umask's permissions, not mkstemp's 0600
        with temporary.open("xb") as file:
            file.write(content)
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)
