"""Reports as people and programs read them: text, HTML, CSV, JSON, the formats of other viewers.

Importing this package is cheap; what writes a format is imported when it is asked for.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tensorlens.errors import TensorlensError, UsageError
from tensorlens.lazy import attach

if TYPE_CHECKING:
    from tensorlens.render.blocks import Block
    from tensorlens.render.shown import Shown, View

ENDINGS = ("json", "html", "csv", "txt")
"""The endings that every kind of record can be written with."""
RECORDING_ENDINGS = (
    *("folded", "perfetto.json", "pickle", "speedscope.json"),
    *("tlens", "tlens.gz", "trace.json"),
)
"""Those for recordings alone; of an estimate they keep its recording."""
READ_AGAIN = ("json", "tlens", "tlens.gz", "pickle")
"""Those that ``tensorlens.load()`` takes."""
_WRITERS = {
    "csv": "tensorlens.render.flat",
    "html": "tensorlens.render.html",
    "txt": "tensorlens.render.text",
}
_KNOWN = (*ENDINGS, *RECORDING_ENDINGS)


def either(endings: Sequence[str]) -> str:
    """Return endings as a person reads them: ``.json, .html, .csv or .txt``."""
    *first, last = (f".{each}" for each in endings)
    return f"{', '.join(first)} or {last}" if first else last


def checked_ending(path_or_ending: str | os.PathLike[str]) -> str:
    """Return the ending of a file, given as ``"run.html"``, ``".html"`` or ``"html"``.

    What writes it is loaded: a program that runs next may change what can be imported.

    Raises:
        UsageError: no file with that ending is written.
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
        record: what the file is of.
        ending: one that is known. A ``json`` is read back equal; that of a recording and of an
            estimate has what they tell, for other programs, and their events packed.
        view: for files that people read; data is always written whole.

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
    from tensorlens.render.shown import permitted

    record = permitted(record)
    exported = getattr(record.presenter(), "exported", None)
    if exported is None:
        raise UsageError(f".{ending} is for recordings: save this one as .json")
    found: str | bytes = exported(record, ending)
    return found


def ending_of(name: str) -> str | None:
    """Return the longest ending of a name that is known: of ``run.tlens.gz``, ``tlens.gz``.

    None where none is.
    """
    parts = name.lower().split(".")
    endings = (".".join(parts[first:]) for first in range(len(parts)))
    return next((ending for ending in endings if ending in _KNOWN), None)


def tagged(name: str, tag: str) -> str:
    """Return a file's name with a tag before its ending: ``run.4711.tlens.gz``."""
    ending = ending_of(name)
    start = name if ending is None else name[: -len(ending) - 1]
    return f"{start}.{tag}" if ending is None else f"{start}.{tag}{name[len(start) :]}"


def save(
    record: Shown,
    path: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    view: View | None = None,
) -> Path:
    """Write ``record`` to ``path`` in the format its ending names, whole or not at all.

    Args:
        record: what to write.
        path: where to; its ending names the format.
        overwrite: replace a file that is already there.
        view: which tensors a file for people shows; data is always written whole.

    Returns:
        The path written.

    Raises:
        UsageError: the ending is not known, or the file exists and ``overwrite`` is not set.
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
    """Write a file whole or not at all: a process that is killed leaves the one that was there.

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
        # a device or a pipe is written to, not replaced
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


attach(
    __name__,
    {
        "blocks": ("Box", "Treemap"),
        "figures": ("device_names", "device_sources", "duration", "size"),
        "flat": ("csv_text", "to_pandas"),
        "html": ("fragment", "html_page", "markup", "rectangles"),
        "shown": ("View",),
        "source": (
            "clipped",
            "dedented",
            "printable",
            "short_path",
            "shortened",
            "spreadsheet_text",
            "width",
        ),
        "text": ("TextRenderer",),
        "text.page": ("distinct_names",),
    },
)
