"""Names as a tree: ``history[3].loss`` is ``loss`` of the fourth of ``history``.

The tensors of one list share the list's text, so that a name takes a few bytes and is put
together only when it is read.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Sequence
from types import FunctionType
from typing import Any

TEXT, INDEX, KEY, ATTRIBUTE = range(4)
"""Kinds of nodes: a text; and below a parent ``[3]``, ``['key']`` or ``.attribute``."""

BLANK = "[*]"
"""Sign for any index or key."""

LONGEST_KEY = 60


class Names:
    """Nodes of ``(parent, kind, value)``; a node is known by its number.

    ``value`` is the index for :data:`INDEX`, otherwise the number of a text. ``parent`` is -1 for a
    root.
    """

    __slots__ = ("_numbers", "kinds", "parents", "texts", "values")

    def __init__(
        self,
        parents: array[int] | None = None,
        kinds: array[int] | None = None,
        values: array[int] | None = None,
        texts: Sequence[str] = (),
    ) -> None:
        self.parents = array("i") if parents is None else parents
        self.kinds = array("b") if kinds is None else kinds
        self.values = array("q") if values is None else values
        self.texts = list(texts)
        self._numbers = {text: number for number, text in enumerate(self.texts)}

    def __len__(self) -> int:
        return len(self.parents)

    def text(self, words: str) -> int:
        """Return a new root with this text."""
        return self._add(-1, TEXT, self.number(words))

    def open_text(self, words: str) -> int:
        """Return a new root with this text, which :meth:`settle` may replace later."""
        self.texts.append(words)
        return self._add(-1, TEXT, len(self.texts) - 1)

    def settle(self, node: int, other: int, words: str) -> None:
        """Make a node of :meth:`open_text` read as ``other``, and its copies as ``words``."""
        self.texts[self.values[node]] = words
        self.become(node, other)

    def index(self, parent: int, index: int) -> int:
        """Return a new node: ``parent[index]``."""
        return self._add(parent, INDEX, index)

    def key(self, parent: int, key: Any) -> int:
        """Return a new node: ``parent['key']``, for any key; none of the key's code runs."""
        kind = type(key)
        if kind is int and -(2**63) <= key < 2**63:
            return self._add(parent, INDEX, key)
        return self._add(parent, KEY, self.number(key_text(key)))

    def attribute(self, parent: int, name: str) -> int:
        """Return a new node: ``parent.name``, or ``name`` if the parent's text is empty."""
        number = self._numbers.get(name)
        if number is None:
            number = self.number(attribute_text(name))
        # not by _add(): a large model has a hundred thousand
        self.parents.append(parent)
        self.kinds.append(ATTRIBUTE)
        self.values.append(number)
        return len(self.parents) - 1

    def below(self, node: int, copies: dict[int, int]) -> int:
        """Copy the path of a node below another one; return the copy of the node.

        Args:
            node: the node.
            copies: node to its copy; at first -1 to the node below which the copies go.
        """
        path = []
        while node not in copies:
            path.append(node)
            node = self.parents[node]
        last = copies[node]
        for each in reversed(path):
            kind, value = self.kinds[each], self.values[each]
            if kind != TEXT or self.texts[value]:
                last = self._add(last, ATTRIBUTE if kind == TEXT else kind, value)
            copies[each] = last
        return last

    def become(self, node: int, other: int) -> None:
        """Make ``node``, and so all names below it, read as ``other``."""
        for column in (self.parents, self.kinds, self.values):
            column[node] = column[other]

    def root(self, node: int) -> int:
        """Return the first node of a name."""
        while self.parents[node] >= 0:
            node = self.parents[node]
        return node

    def number(self, text: str) -> int:
        """Return the number of ``text`` among :attr:`texts`."""
        number = self._numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def _add(self, parent: int, kind: int, value: int) -> int:
        self.parents.append(parent)
        self.kinds.append(kind)
        self.values.append(value)
        return len(self.parents) - 1

    def __getitem__(self, node: int) -> str:
        """Return the name of a node."""
        return "".join(self.steps(node)[1]).removeprefix(".")

    def steps(self, node: int) -> tuple[list[int], list[str]]:
        """Return the kinds and the texts of a name's nodes, its root first."""
        kinds: list[int] = []
        parts: list[str] = []
        while node >= 0:
            kind, value, parent = self.kinds[node], self.values[node], self.parents[node]
            kinds.append(kind)
            if kind == INDEX:
                parts.append(f"[{value}]")
            elif kind == KEY:
                parts.append(f"[{self.texts[value]}]")
            elif kind == ATTRIBUTE:
                parts.append(f".{self.texts[value]}")
            else:
                parts.append(self.texts[value])
            node = parent
        kinds.reverse()
        parts.reverse()
        return kinds, parts

    def pattern(self, node: int) -> str:
        """Return the name of a node with indices and keys blanked: ``rows[*][*].loss``."""
        steps = zip(*self.steps(node), strict=True)
        parts = (BLANK if kind in (INDEX, KEY) else text for kind, text in steps)
        return "".join(parts).removeprefix(".")

    def family(self, node: int) -> tuple[int, int] | None:
        """Return ``(parent, index)`` if the name ends in an index, else None."""
        if node < 0 or self.kinds[node] != INDEX:
            return None
        return self.parents[node], self.values[node]


class DistinctTexts:
    """Makes equal texts distinct by numbers: ``Adam``, ``Adam#2``."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def next(self, text: str) -> str:
        """Return the text, with a number if it was returned before."""
        self._counts[text] += 1
        count = self._counts[text]
        return text if count == 1 else f"{text}#{count}"


_UNIQUE = re.compile(r"(?<=\w)_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")


def attribute_text(name: str) -> str:
    """Return an attribute's name without parts that differ between processes, as in FSDP2."""
    return _UNIQUE.sub("", name) if "-" in name else name


def key_text(key: Any) -> str:
    """Return a dict's key as in code; for a key of no plain type, the type's name."""
    kind = type(key)
    if kind is str:
        text = key if len(key) <= LONGEST_KEY else key[: LONGEST_KEY - 1] + "…"
        return repr(text)
    if kind in (int, float, bool, bytes) or key is None:
        text = repr(key)
        return text if len(text) <= LONGEST_KEY else text[: LONGEST_KEY - 1] + "…"
    if kind is tuple and len(key) <= 4:
        return "(" + ", ".join(key_text(item) for item in key) + ")"
    if kind is FunctionType:
        return f"<{key.__name__}>"
    return f"<{type.__getattribute__(kind, '__name__')}>"


_SAVED = re.compile(r"([A-Za-z_]\w*?)Backward\d*\.(\w+)(?:\[[^\]]*\])?")
"""autograd's name of a saved tensor: node and argument."""
_LONGEST_NODE = 200
_MAIN = ("self", "input", "mat1", "result", "output", "saved_tensors")
"""Arguments whose names are left out."""


def readable_name(name: str) -> str:
    """Return ``mlp: saved by Gelu`` for ``mlp: GeluBackward0.self``.

    Used in tables for tensors that only autograd holds; data keep the full names.
    """
    head, joint, tail = name.rpartition(": ")
    match = _SAVED.fullmatch(tail) if len(tail) < _LONGEST_NODE else None
    if match is None:
        return name
    argument = "" if match[2] in _MAIN else f" ({match[2]})"
    return f"{head}{joint}saved by {match[1]}{argument}"


_PART = r"(?<![^. ])\d+(?![^.:])"
_OF_PATH = re.compile(_PART)
_NUMBER = re.compile(rf"{_PART}|(?<=\[)\d+(?=\])")
_BLANK = "*"
_MOST_LISTED = 4
"""Numbers that are listed; if there are more, only the first and the last are."""


def without_indices(name: str, *, indices: bool = True) -> str:
    """Return the name with its numbers blanked: ``layers.*.mlp``.

    Args:
        name: a path, also with an origin: ``layers.0.mlp: aten::linear``.
        indices: whether to blank numbers in brackets too.
    """
    return (_NUMBER if indices else _OF_PATH).sub(_BLANK, name)


def common_name(names: Sequence[str]) -> str:
    """Return a common name for names that differ only in numbers: ``layers[0-11].mlp``."""
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
            text += number_ranges(here, "..")
        else:
            text = f"{text.removesuffix('.')}[{number_ranges(here)}]"
    return text + first[end:]


def number_ranges(numbers: Sequence[int], dash: str = "-") -> str:
    """Return numbers as text: ``0-11``, ``0,2``; ``0...30`` for more than four with gaps.

    Args:
        numbers: sorted distinct numbers.
        dash: separator of the first and the last of a run.
    """
    first, last = numbers[0], numbers[-1]
    if len(numbers) > 2 and last - first == len(numbers) - 1:
        return f"{first}{dash}{last}"
    if len(numbers) > _MOST_LISTED:
        return f"{first}...{last}"
    return ",".join(map(str, numbers))


def common_path(one: tuple[str, ...], other: tuple[str, ...]) -> tuple[str, ...]:
    """Return the path of the innermost module that contains both modules."""
    length = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        length += 1
    return one[:length]
