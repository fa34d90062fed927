"""Reads live tensors and where their bytes lie, without running any of their code."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence

import torch

from tensorlens.frameworks.torch.census.tensors.columns import ODD, REQUIRES_GRAD, Columns
from tensorlens.frameworks.torch.census.tensors.scan_native import NativeReader
from tensorlens.frameworks.torch.census.tensors.scan_python import PythonReader
from tensorlens.native.build import NativeUnavailable

__all__ = ["ODD", "REQUIRES_GRAD", "Scan", "fallback_reason"]

Reader = NativeReader | PythonReader


class Scan(Columns):
    """Tensors in columns; it refers to none of them.

    Whoever adds tensors keeps them alive for as long as more are added: a tensor is known by its
    address. Not for use by several threads at once.

    Args:
        reader: makes what fills the columns; the native reader, or else the Python one.
    """

    def __init__(self, reader: Callable[[Columns], Reader] | None = None) -> None:
        super().__init__()
        self._reader = (reader or _reader)(self)

    def add(self, tensors: Sequence[torch.Tensor]) -> array[int]:
        """Return the row of each; -1 for what is fake, no tensor, or half made.

        A tensor that was added before keeps its row. A gradient becomes a row of its own, even
        one that nobody has looked at from Python.

        Raises:
            MemoryError: there is none left.
            ValueError: the scan was closed.
        """
        return self._reader.add(tensors)

    def rows_of(self, ids: array[int]) -> array[int]:
        """Return the row of each of these ``id()`` (type code ``Q``), or -1.

        Raises:
            MemoryError: there is none left.
            ValueError: the scan was closed.
        """
        assert ids.typecode == "Q", ids.typecode
        return self._reader.rows_of(ids)

    def close(self) -> None:
        """Release what is needed to add more; the columns stay."""
        self._reader.close()


_reason: str | None = None


def fallback_reason() -> str | None:
    """Return the one line that says why tensors are read from Python, or None."""
    return _reason


def _reader(columns: Columns) -> Reader:
    global _reason
    # a compiler that failed once is not run again for every scan
    if _reason is None:
        try:
            return NativeReader(columns)
        except NativeUnavailable as error:
            _reason = str(error)
    return PythonReader(columns)
