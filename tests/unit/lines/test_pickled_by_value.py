"""A decorated function that is sent to another process with its code runs there unmeasured."""

import pickle

import pytest

from tensorlens import LineProfiler

cloudpickle = pytest.importorskip("cloudpickle", reason="cloudpickle is not installed")


def by_value(function):
    function.__module__ = "__main__"
    return pickle.loads(cloudpickle.dumps(function))


def test_a_function_is_sent_without_the_profiler():
    profiler = LineProfiler()

    def double(number):
        return 2 * number

    sent = by_value(profiler(double))
    assert sent(21) == 42
    assert profiler.result().functions[0].calls == 0


def test_a_generator_is_sent_without_the_profiler():
    profiler = LineProfiler()

    def count(number):
        yield from range(number)

    sent = by_value(profiler(count))
    assert list(sent(3)) == [0, 1, 2]
    assert profiler.result().functions[0].calls == 0
