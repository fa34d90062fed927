"""Search for the tensor whose graph gets deeper in each step: a running sum with its ``grad_fn``.

Autograd numbers the nodes of a thread as they are made. A graph of one step has numbers of that
step alone; a graph that grows has numbers of each step since the loop began.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from statistics import median
from typing import Any

import torch

from tensorlens.frameworks.host.loop_steps import Steps
from tensorlens.frameworks.retention import GrowingGraph
from tensorlens.frameworks.torch.census.graph import maker_of, nodes_below, storage_address
from tensorlens.frameworks.torch.census.undisturbed import undisturbed
from tensorlens.heap import live_objects, select

_MAX_NODES = 100_000
"""Maximum number of nodes that are looked at: the latest."""
_MAX_TENSORS = 8
"""Maximum number of tensors whose nodes are counted: the oldest."""
_MIN_STEPS, _MIN_NODES = 4, 2
"""Minimum of steps that are seen, and of the median of the nodes that each adds."""


def growing_graph(steps: Steps, begin: int, made: int) -> GrowingGraph | None:
    """Return the live tensor whose graph grew most in a loop's steps, if one did.

    Args:
        steps: the followed steps, which know the lines.
        begin: number of the first node that this thread could make in them.
        made: number of these steps.
    """
    end = torch._C._autograd._get_sequence_nr()
    since = max(begin, end - _MAX_NODES)
    length = (end - begin) / max(1, made)
    if end - since < max(1.0, _MIN_STEPS * length):
        return None
    with undisturbed() as can_read:
        tensors = select(live_objects(), (torch.Tensor,))[0]
        roots = {node: each for each in tensors if (node := maker_of(each)) is not None}
        wanted = range(since, end)
        numbers = _numbers(roots, wanted, can_read)
        oldest = _oldest(numbers)
        recent, half = end - 2 * length, (since + end) // 2
        old = [each for each in roots if recent <= numbers.get(each, -1) and oldest[each] < half]
        # the oldest first: a mean has the graph of its sum, which was made before it
        first = sorted(old, key=numbers.__getitem__)[:_MAX_TENSORS]
        counts = {
            node: _nodes_per_step(_numbers([node], wanted, can_read), wanted, length)
            for node in first
        }
        best = max(counts, key=counts.__getitem__, default=None)
        if best is None or counts[best] < _MIN_NODES:
            return None
        tensor = roots[best]
    line = steps.line_at(storage_address(tensor))
    return GrowingGraph(tensor, counts[best], line, torch._C.TensorBase.numel(tensor) == 1)


def _numbers(roots: Iterable[Any], wanted: range, can_read: Callable[[], bool]) -> dict[Any, int]:
    """Return wanted numbers at and below roots, by node; none if too many, or not readable now."""
    found: dict[Any, int] = {}
    waiting = [*roots]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        if len(found) > _MAX_NODES or not can_read():
            return {}
        number = _number(node)
        # an older node leads to no newer one; nodes of leaves have the largest numbers
        if number in wanted:
            found[node] = number
            waiting += nodes_below(node)
    return found


def _number(node: Any) -> int:
    try:
        return int(node._sequence_nr())
    except Exception:
        # a custom Function's node that is not in a graph yet
        return -1


def _oldest(numbers: Mapping[Any, int]) -> dict[Any, int]:
    """Return the smallest number that each node leads to."""
    oldest: dict[Any, int] = {}
    for node in sorted(numbers, key=numbers.__getitem__):
        below = (oldest[each] for each in nodes_below(node) if each in oldest)
        oldest[node] = min((numbers[node], *below))
    return oldest


def _nodes_per_step(numbers: Mapping[Any, int], wanted: range, length: float) -> float:
    """Return the median of the nodes that steps added; a step takes ``length`` numbers."""
    parts = Counter(int((each - wanted.start) / length) for each in numbers.values())
    return float(median(parts[step] for step in range(round(len(wanted) / length))))
