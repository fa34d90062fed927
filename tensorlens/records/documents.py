"""Records that show themselves, and are written as JSON and read back equal."""

from __future__ import annotations

import json
import os
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from tensorlens.errors import FileFormatError
from tensorlens.records.checking import check_schema
from tensorlens.records.restoring import restored

if TYPE_CHECKING:
    import pandas


class Shown:
    """What every record that is printed derives from."""

    __slots__ = ()

    PRESENTER: ClassVar[str]
    """The module that says what is shown of it: a presenter of :mod:`tensorlens.render.blocks`."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        # IPython asks a class for its own __repr__ before it asks those above for this
        cls._repr_pretty_ = cls._repr_pretty_  # type: ignore[method-assign]

    def __str__(self) -> str:
        from tensorlens import render

        return render.text_of(self._record())

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def _as_text(self, blocks: Any) -> str:
        """Return blocks as wide as the terminal."""
        from tensorlens import render

        return render.text_of_blocks(blocks)

    def presenter(self) -> Any:
        """Return the module that says what is shown of it."""
        return import_module(self.PRESENTER)

    def _record(self) -> Any:
        """Return itself, as one of the records that presenters know."""
        return self


class Document(Shown):
    """What every record that is printed and saved as a whole derives from.

    A frozen dataclass of plain fields gets all of it; another record has its own :meth:`to_dict`
    and :meth:`from_dict`. Its own class says what a row of the table is.
    """

    __slots__ = ()

    SCHEMA: ClassVar[str]
    VERSION: ClassVar[int]
    KIND: ClassVar[str]
    """What messages call it."""
    INDENT: ClassVar[int | None] = 1
    """Of its JSON; None puts all of it on one line, as what has many rows is."""

    def _repr_html_(self) -> str:
        from tensorlens import render

        return render.fragment_of(self._record())

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = False) -> Path:
        """Write it in the format that the file's ending names.

        That is ``.html``, ``.json``, ``.csv`` or ``.txt``; of a recording, and of the one that an
        estimate has, ``.tlens``, which keeps all of it, and the formats of other viewers.

        Raises:
            UsageError: the ending is not known, or the file exists and ``overwrite`` is not set.
            TensorlensError: the file could not be written; nothing is left behind.
        """
        from tensorlens import render

        return render.save(self._record(), path, overwrite=overwrite)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts, lists, strings and numbers (what :meth:`to_json` writes)."""
        return {"schema": self.SCHEMA, "version": self.VERSION, **asdict(self._record())}

    def to_json(self) -> str:
        """Return the record as JSON text; :meth:`from_json` reads it back equal."""
        separators = (",", ":") if self.INDENT is None else None
        return json.dumps(self.to_dict(), indent=self.INDENT, separators=separators)

    def to_html(self) -> str:
        """Return a page that needs nothing else."""
        from tensorlens import render

        return render.page_of(self._record())

    def to_csv(self) -> str:
        """Return the table as CSV text, sizes in bytes."""
        from tensorlens import render

        return render.csv_of(self._record())

    def to_pandas(self) -> pandas.DataFrame:
        """Return the table as a DataFrame, sizes in bytes.

        Raises:
            ImportError: pandas is not installed (``pip install tensorlens[pandas]``).
        """
        from tensorlens import render

        return render.frame_of(self._record())

    @classmethod
    def from_dict(cls, data: Any) -> Self:
        """Return the record that :meth:`to_dict` gave.

        Raises:
            FileFormatError: it is something else, newer than this tensorlens, or damaged.
        """
        check_schema(data, cls.SCHEMA, cls.VERSION, cls.KIND)
        given = {key: value for key, value in data.items() if key not in ("schema", "version")}
        try:
            found = restored(cls, given)
            trouble = found._trouble()
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise FileFormatError(f"damaged {cls.KIND}: {error}") from None
        if trouble is not None:
            raise FileFormatError(f"damaged {cls.KIND}: {trouble}")
        return found

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

    def _trouble(self) -> str | None:
        """Return what the fields of a file do not tell of one another; None where they agree."""
        return None
