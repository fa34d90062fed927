"""A decorated function may call itself as deep as it could without the decorator."""

import sys

import pytest

from tensorlens import LineProfiler


def depth_reached(count):
    """Return how deep a recursion comes before RecursionError, counted by the function itself."""
    reached = 0

    def down(level):
        nonlocal reached
        reached = level
        down(level + 1)

    down = count(down)
    with pytest.raises(RecursionError):
        down(1)
    return reached


def test_recursion_goes_as_deep_as_without_the_decorator():
    limit = sys.getrecursionlimit()
    plain = depth_reached(lambda function: function)
    profiled = depth_reached(LineProfiler())
    # the frames of the tracer itself at the deepest call, and one step lent ahead
    assert plain - 15 <= profiled <= plain + 100
    assert sys.getrecursionlimit() == limit


def test_the_limit_is_as_before_after_a_deep_call():
    limit = sys.getrecursionlimit()
    seen = []

    @LineProfiler()
    def down(level):
        if level == 0:
            seen.append(sys.getrecursionlimit())
            return 0
        return 1 + down(level - 1)

    assert down(40) == 40
    assert down(500) == 500
    assert seen[0] == limit < seen[1]
    assert sys.getrecursionlimit() == limit
