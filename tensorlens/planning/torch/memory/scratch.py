"""What a kernel takes besides its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Scratch:
    """One allocation of a kernel, in bytes."""

    nbytes: int
    """The likeliest size, if it depends on the device."""
    least: int
    most: int
    name: str
    """``cuDNN workspace``, say."""
    is_taken_first: bool = False
    """Whether it is allocated before the operator's results."""
    is_kept: bool = False
    """Whether it outlives the operator, as a library's workspace does."""

    @classmethod
    def exactly(
        cls, nbytes: int, name: str, *, is_taken_first: bool = False, is_kept: bool = False
    ) -> Scratch:
        """Return scratch of a known size."""
        return cls(nbytes, nbytes, nbytes, name, is_taken_first, is_kept)


ScratchRule = Callable[[Any, Sequence[Any], dict[str, Any], Any, int], Sequence[Scratch]]
"""Maps an operator (``torch._ops.OpOverload``) that has run, its arguments, keyword arguments and
result and the number of the thread to its scratch."""
