"""Reports as people and programs read them: text, HTML, CSV, JSON, the formats of other viewers.

A renderer is a small class with an ``extension`` and ``render(record)``, for every kind of
record. Importing this package is cheap; each renderer is imported when it is asked for.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tensorlens.errors import TensorlensError, UsageError

if TYPE_CHECKING:
    from tensorlens.render.blocks import Block
    from tensorlens.render.shown import Shown
    from tensorlens.render.view import View

_RENDERERS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "csv": ("tensorlens.render.flat", "CsvRenderer", {}),
    "html": ("tensorlens.render.html", "HtmlRenderer", {}),
    "json": ("tensorlens.render", "JsonRenderer", {}),
    # a file is not the terminal this happens to run in
    "txt": (
        "tensorlens.render.text",
        "TextRenderer",
        {"width": 120, "encoding": "utf-8", "tells_run": True},
    ),
}
_FOR_PEOPLE = ("html", "txt")

ENDINGS = ("json", "html", "csv", "txt")
"""The endings that every kind of record can be written with."""
RECORDING_ENDINGS = (
    *("folded", "perfetto.json", "pickle", "speedscope.json"),
    *("tlens", "tlens.gz", "trace.json"),
)
"""Those for recordings alone; of an estimate they keep its recording."""
READ_AGAIN = ("json", "tlens", "tlens.gz", "pickle")
"""Those that ``tensorlens.load()`` takes."""
_KNOWN = (*ENDINGS, *RECORDING_ENDINGS)


class Renderer(Protocol):
    """Turns a report into one file's content; a pure function of the record."""

    @property
    def extension(self) -> str:
        """The ending of the files it writes, without the dot."""

    def render(self, record: Any) -> str | bytes:
        """Return the content of the file; text is to be written as UTF-8, newlines as they are."""


class JsonRenderer:
    """Writes what :func:`tensorlens.loading.parse` reads back equal.

    Of a recording and of an estimate that is what they tell, for other programs, and their events
    packed, which nothing but tensorlens reads.
    """

    extension = "json"

    def render(self, record: Any) -> str:
        """Return the record as JSON text with a newline at the end."""
        return f"{record.to_json()}\n"


class ExportRenderer:
    """Writes what keeps recordings alone, as the presenter of the record does it."""

    def __init__(self, extension: str) -> None:
        self.extension = extension

    def render(self, record: Shown) -> str | bytes:
        """Return the content of the file.

        Raises:
            UsageError: the record has no recording.
        """
        from tensorlens.render.shown import permitted

        record = permitted(record)
        exported = getattr(record.presenter(), "exported", None)
        if exported is None:
            raise UsageError(f".{self.extension} is for recordings: save this one as .json")
        content: str | bytes = exported(record, self.extension)
        return content


def either(endings: Sequence[str]) -> str:
    """Return endings as a person reads them: ``.json, .html, .csv or .txt``."""
    *first, last = (f".{each}" for each in endings)
    return f"{', '.join(first)} or {last}" if first else last


def renderer_for(path_or_extension: str | os.PathLike[str], view: View | None = None) -> Renderer:
    """Return the renderer for a file by its ending: ``"run.html"``, ``".html"`` or ``"html"``.

    ``view`` is for those that people read; data is always written whole.

    Raises:
        UsageError: no renderer writes files with that ending.
    """
    name = Path(path_or_extension).name
    extension = ending_of(name)
    if extension is None:
        known = ", ".join(f".{each}" for each in sorted(_KNOWN))
        raise UsageError(f"cannot tell the format of {name!r}: the endings known are {known}")
    if extension in RECORDING_ENDINGS:
        return ExportRenderer(extension)
    module, renderer, options = _RENDERERS[extension]
    if view is not None and extension in _FOR_PEOPLE:
        options = {**options, "view": view}
    made: Renderer = getattr(import_module(module), renderer)(**options)
    return made


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
    renderer = renderer_for(path, view)
    target = Path(path)
    if not overwrite and os.path.lexists(target):
        raise UsageError(f"{target} exists: choose another name, or overwrite it with -f")
    content = renderer.render(record)
    if isinstance(content, str):
        # a file name that is no valid text reaches the report as lone surrogates
        content = content.encode("utf-8", "backslashreplace")
    try:
        write_whole(target, content)
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
    target = target.resolve()
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
