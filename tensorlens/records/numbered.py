"""Names that differ in numbers alone, as one: ``layers[0-11].mlp.weight``, ``history[0..9]``.

A number counts where it is a whole part of a path, as ``0`` is in ``layers.0.mlp``, or an index.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

_PART = r"(?<![^. ])\d+(?![^.:])"
_OF_PATH = re.compile(_PART)
_NUMBER = re.compile(rf"{_PART}|(?<=\[)\d+(?=\])")
_BLANK = "*"
_MOST_LISTED = 4
"""So many numbers are listed before the first and the last stand for them."""


def blanked(name: str, *, indices: bool = True) -> str:
    """Return the name with any number in place of those that it has: ``layers.*.mlp``.

    Args:
        name: a path, or one with what was made there: ``layers.0.mlp: aten::linear``.
        indices: whether the numbers in brackets count as well.
    """
    return (_NUMBER if indices else _OF_PATH).sub(_BLANK, name)


def merged(names: Sequence[str]) -> str:
    """Return one name for several that are equal when :func:`blanked`: ``layers[0-11].mlp``."""
    first = names[0]
    found = list(dict.fromkeys(names))
    if len(found) == 1:
        return first
    columns = zip(*([int(each) for each in _NUMBER.findall(name)] for name in found), strict=True)
    numbers = [sorted(set(column)) for column in columns]
    text, end = "", 0
    for place, here in zip(_NUMBER.finditer(first), numbers, strict=True):
        text += first[end : place.start()]
        end = place.end()
        if len(here) == 1:
            text += place.group()
        elif text.endswith("["):
            text += listed(here, "..")
        else:
            text = f"{text.removesuffix('.')}[{listed(here)}]"
    return text + first[end:]


def listed(numbers: Sequence[int], dash: str = "-") -> str:
    """Return numbers as a text: ``0-11``, ``0,2``; ``0...30`` where some between are not there.

    Args:
        numbers: sorted, each once.
        dash: what stands between the first and the last of a run.
    """
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{first}{dash}{last}"
    if len(numbers) > _MOST_LISTED:
        return f"{first}...{last}"
    return ",".join(map(str, numbers))
