"""The columns of a scan: one entry a tensor."""

from __future__ import annotations

import sys
from array import array

REQUIRES_GRAD = 1
"""Autograd follows it: a leaf that asks for a gradient, or the result of a recorded operation."""
ODD = 2
"""Not a plain strided tensor with a storage: its parts have to be looked at one by one."""


class Columns:
    """One entry a tensor, in the order in which the tensors were met.

    Sizes are bytes, but ``offset`` is in elements. ``device``, ``dtype``, ``shape`` and ``stride``
    number the lists ``devices``, ``dtypes``, ``shapes`` and ``shapes``; -1 is a stride that there
    is not. A shape that cannot be read without running code is ``()``, with 0 for ``nbytes``.
    """

    CODES = {  # noqa: RUF012 - it never changes
        "nbytes": "q",
        "storage": "Q",
        "storage_nbytes": "q",
        "offset": "q",
        "device": "h",
        "dtype": "h",
        "shape": "i",
        "stride": "i",
        "object": "Q",
        "flags": "B",
        "first": "i",
    }
    """Column to its type code, as :mod:`array` spells them; the native reader has this order."""

    def __init__(self) -> None:
        for column, code in self.CODES.items():
            setattr(self, column, array(code))
        self.devices: list[str] = []
        self.dtypes: list[str] = []
        self.shapes: list[tuple[int, ...]] = []
        self.fakes = 0
        """How often a FakeTensor was met, and left out."""
        self.owners = array("i")
        """The rows that have a gradient, in order."""
        self.gradients = array("i")
        """The row of each one's gradient."""

    nbytes: array[int]
    """Elements times the size of one."""
    storage: array[int]
    """Address of the storage's first byte, or 0."""
    storage_nbytes: array[int]
    """Bytes of the storage; 0 where it has no address."""
    offset: array[int]
    device: array[int]
    dtype: array[int]
    shape: array[int]
    stride: array[int]
    object: array[int]
    """``id()`` of the tensor; 0 where no Python object is known."""
    flags: array[int]
    """Sum of :data:`REQUIRES_GRAD` and :data:`ODD`."""
    first: array[int]
    """First row with the same ``storage``; its own row where it has no address."""

    def __len__(self) -> int:
        return len(self.nbytes)

    @property
    def shares(self) -> bool:
        """Whether some rows have the same storage."""
        return self.first != array("i", range(len(self)))


def fake_tensor() -> type | None:
    """Return torch's FakeTensor, or None while nobody has imported it."""
    kind = getattr(sys.modules.get("torch._subclasses.fake_tensor"), "FakeTensor", None)
    return kind if isinstance(kind, type) else None


def new_rows(length: int) -> array[int]:
    """Return as many rows, all -1."""
    return array("i", (-1,)) * length
