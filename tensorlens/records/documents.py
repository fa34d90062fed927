"""Records that show themselves, and are written as JSON and read back equal."""

from __future__ import annotations

import json
import os
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, fields, is_dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from tensorlens.errors import FileFormatError
from tensorlens.guards import one_line
from tensorlens.render.shown import Shown, permitted

if TYPE_CHECKING:
    import pandas


_T = TypeVar("_T")
_ENVELOPE = ("schema", "version", "contains_source")
_OTHER_FORM = (AttributeError, IndexError, KeyError, OverflowError, TypeError, ValueError)
"""Errors raised by reading data of another form."""


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn the errors that data of another form raise into a FileFormatError.

    Raises:
        FileFormatError: the file is damaged.
    """
    try:
        yield
    except FileFormatError:
        raise
    except _OTHER_FORM as error:
        reason = f"no {error}" if isinstance(error, KeyError) else one_line(error, 100)
        raise FileFormatError(f"damaged {what}: {reason}") from None


def check_schema(data: Any, schema: str, version: int, kind: str) -> None:
    """Raise FileFormatError unless ``data`` states this schema and version."""
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise FileFormatError(f"not a tensorlens {kind}")
    if data.get("version") != version:
        raise FileFormatError(
            f"{kind} of version {data.get('version')!r}; this tensorlens reads {version}"
        )


def restored(kind: type[_T], data: Any, **ready: Any) -> _T:
    """Return the dataclass from the ``data`` of ``asdict``.

    Fields are plain values, members of a ``StrEnum``, dataclasses, tuples or dicts of these, or
    None. Fields with a default may be missing. ``ready`` has the values of other fields. Keys that
    are no field are ignored: a newer tensorlens may have added them.

    Raises:
        TypeError, ValueError: a field is missing, or something is of another form.
    """
    if not isinstance(data, dict):
        raise TypeError(f"{type(data).__name__} in place of a dict")
    makers: dict[str, tuple[Callable[[Any], Any], bool]] = _makers(kind)  # type: ignore[arg-type]
    values = dict(ready)
    for name, (make, is_needed) in makers.items():
        if name in ready:
            continue
        if name in data:
            values[name] = make(data[name])
        elif is_needed:
            raise ValueError(f"the field {name} is missing")
    return kind(**values)


@cache
def _makers(kind: type) -> dict[str, tuple[Callable[[Any], Any], bool]]:
    """Return for each field a function that makes it of plain data, and whether it is required."""
    hints = typing.get_type_hints(kind)
    makers = {}
    for field in fields(kind):
        is_needed = field.default is MISSING and field.default_factory is MISSING
        makers[field.name] = (_maker(hints[field.name]), is_needed)
    return makers


def _maker(hint: Any) -> Callable[[Any], Any]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        (one,) = (_maker(each) for each in arguments if each is not types.NoneType)
        return lambda value: None if value is None else one(value)
    if origin in (tuple, Sequence):
        item = _maker(arguments[0])
        return lambda value: tuple(map(item, value))
    if origin in (dict, Mapping):
        value_of = _maker(arguments[1])
        return lambda value: {key: value_of(each) for key, each in value.items()}
    if isinstance(hint, type) and is_dataclass(hint):
        return lambda value: restored(hint, value)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return hint
    return lambda value: value


class Document(Shown):
    """Base of every record that is printed and saved as a whole.

    A frozen dataclass of plain fields needs no more; another record has its own :meth:`to_dict`
    and :meth:`from_dict`. The subclass describes the rows of its table.
    """

    __slots__ = ()

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int]
    KIND: ClassVar[str]
    """Name in messages."""
    INDENT: ClassVar[int | None] = 1
    """Indent of its JSON; None is one line, for records with many rows."""

    def _repr_html_(self) -> str:
        from tensorlens.render import html

        return html.fragment(self)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write the record in the format of the file's ending.

        Endings are ``.html``, ``.json``, ``.csv`` and ``.txt``; for recordings and estimates also
        ``.tlens``, which keeps all events, and the formats of other viewers.

        Raises:
            UsageError: the ending is unknown, or the file exists and ``overwrite`` is False.
            TensorlensError: the file could not be written; nothing is left behind.
        """
        from tensorlens.render import formats

        return formats.save(self, path, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers (what :meth:`to_json` writes).

        The settings may leave source lines out (:mod:`tensorlens.config`).
        """
        record = permitted(self)
        return {
            "schema": self.SCHEMA,
            "version": self.VERSION,
            "contains_source": record.contains_source,
            **record._fields(),
        }

    def _fields(self) -> dict[str, Any]:
        """Return the fields as plain data."""
        return asdict(self)  # type: ignore[call-overload,no-any-return]

    def to_json(self) -> str:
        """Return the record as JSON text; :meth:`from_json` reads it back equal."""
        separators = (",", ":") if self.INDENT is None else None
        return json.dumps(self.to_dict(), indent=self.INDENT, separators=separators)

    def to_html(self) -> str:
        """Return a self-contained page."""
        from tensorlens.render import html

        return html.html_page(self)

    def to_csv(self) -> str:
        """Return the table as CSV text, sizes in bytes."""
        from tensorlens.render import flat

        return flat.csv_text(self)

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a DataFrame, sizes in bytes.

        Raises:
            ImportError: pandas is not installed (``pip install tensorlens[pandas]``).
        """
        from tensorlens.render import flat

        return flat.to_pandas(self)

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return the record that :meth:`to_dict` gave.

        Raises:
            FileFormatError: the data is no such record, of another version, or damaged.
        """
        check_schema(data, cls.SCHEMA, cls.VERSION, cls.KIND)
        given = {key: value for key, value in data.items() if key not in _ENVELOPE}
        # old files lack ``run``, whose default would be this process's
        given.setdefault("run", None)
        try:
            return restored(cls, given, **cls._ready(given))
        except (*_OTHER_FORM, RecursionError) as error:
            raise FileFormatError(f"damaged {cls.KIND}: {error}") from None

    @classmethod
    def from_json(cls, content: str) -> Self:
        """Return the record that :meth:`to_json` wrote.

        Raises:
            FileFormatError: the text is not such a record.
        """
        try:
            data = json.loads(content)
        except (ValueError, RecursionError):
            raise FileFormatError(f"not a tensorlens {cls.KIND}: it is not JSON") from None
        return cls.from_dict(data)

    @classmethod
    def _ready(cls, data: dict[str, Any]) -> dict[str, Any]:
        """Return the fields that :func:`restored` cannot make, made of ``data``."""
        return {}
