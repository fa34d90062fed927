"""Finds the tensor whose graph gets deeper in each step: a sum that goes on with its ``grad_fn``.

Autograd numbers the nodes of a thread as they are made. A graph of one step has the numbers of that
step alone; one that grows has some of each step since the loop began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

import torch

from tensorlens.frameworks.torch.census.graph import maker_of, nodes_below
from tensorlens.frameworks.torch.census.undisturbed import undisturbed
from tensorlens.heap import live_objects, select

_MOST_NODES = 100_000
"""Nodes that are looked at, the latest."""
_MOST_TENSORS = 8
"""Tensors whose nodes are counted, those that were made first."""
_FEWEST_STEPS, _FEWEST_NODES = 4, 2
"""Steps that are to be seen, and nodes that each of most has to add."""


def growing_graph(begin: int, made: int) -> tuple[torch.Tensor, float] | None:
    """Return the live tensor whose graph grew most in a loop's steps, and its nodes a step.

    Args:
        begin: the number of the first node that this thread could make in them.
        made: how many steps these are.
    """
    end = torch._C._autograd._get_sequence_nr()
    since = max(begin, end - _MOST_NODES)
    length = (end - begin) / max(1, made)
    if end - since < max(1.0, _FEWEST_STEPS * length):
        return None
    with undisturbed() as can_read:
        tensors = select(live_objects(), (torch.Tensor,))[0]
        roots = {node: each for each in tensors if (node := maker_of(each)) is not None}
        wanted = range(since, end)
        numbers = _numbers(roots, wanted, can_read)
        oldest = _oldest(numbers)
        latest, half = end - 2 * length, (since + end) // 2
        old = [each for each in roots if latest <= numbers.get(each, -1) and oldest[each] < half]
        # a mean has the graph of its sum: the sum is first
        first = sorted(old, key=numbers.__getitem__)[:_MOST_TENSORS]
        counts = {
            node: _nodes_per_step(_numbers([node], wanted, can_read), wanted, length)
            for node in first
        }
        best = max(counts, key=counts.__getitem__, default=None)
        if best is None or counts[best] < _FEWEST_NODES:
            return None
        return roots[best], counts[best]


def _numbers(roots: Iterable[Any], wanted: range, can_read: Callable[[], bool]) -> dict[Any, int]:
    """Return the nodes below roots, themselves included, that have one of some numbers.

    There are none where they cannot all be read.
    """
    found: dict[Any, int] = {}
    waiting = [*roots]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if len(found) > _MOST_NODES or not can_read():
            return {}
        number = _number(node)
        # what is older leads to nothing newer; those of leaves have the largest of all numbers
        if number in wanted:
            found[node] = number
            waiting += nodes_below(node)
    return found


def _number(node: Any) -> int:
    try:
        return int(node._sequence_nr())
    except Exception:
        # a custom Function's node that is no node yet
        return -1


def _oldest(numbers: Mapping[Any, int]) -> dict[Any, int]:
    """Return the smallest number that each node leads to."""
    oldest: dict[Any, int] = {}
    for node in sorted(numbers, key=numbers.__getitem__):
        below = (oldest[each] for each in nodes_below(node) if each in oldest)
        oldest[node] = min((numbers[node], *below))
    return oldest


def _nodes_per_step(numbers: Mapping[Any, int], wanted: range, length: float) -> float:
    """Return how many nodes most steps added, each of which made as many numbers (``length``)."""
    parts = Counter(int((each - wanted.start) / length) for each in numbers.values())
    return float(median(parts[step] for step in range(round(len(wanted) / length))))
