"""Estimates for host memory against what the counting allocator hands out to the same programs."""

import functools
from collections import Counter

import pytest

from tensorlens.frameworks.torch import Adapter
from tensorlens.frameworks.torch.cpu import CpuCounter
from tests.benchmarks import accuracy_cpu

NUMBER = (8, 4)
"""A Python number in an operation: a tensor of 8 bytes, and what it is cast to."""
RANDOM_STATE = 5056
"""sizeof(mt19937_data_pod) and the next normal values that a generator of the CPU keeps: what
checkpointing sets aside to draw the same numbers again. No operator makes it."""

PROGRAMS = {program.__name__: program for program in accuracy_cpu.PROGRAMS}


@functools.cache
def compared(name):
    if not isinstance(Adapter().cpu_counter(), CpuCounter):
        pytest.skip("; ".join(Adapter().notes()))
    if name == "gpt":
        pytest.importorskip("transformers")
    return accuracy_cpu.compare(PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_what_is_left_at_each_step_s_end_is_exact(name):
    comparison = compared(name)
    assert len(comparison.estimated.ends) == accuracy_cpu.STEPS + 1
    assert comparison.estimated.ends == comparison.measured.ends


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_setup_asks_for_the_same_sizes_in_the_same_order(name):
    comparison = compared(name)
    estimated, measured = (
        [size for size, _ in each.requests[0]]
        for each in (comparison.estimated, comparison.measured)
    )
    assert estimated == measured
    assert comparison.estimated.peaks[0] == comparison.measured.peaks[0]


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("mlp", NUMBER),
        ("checkpointed", (*NUMBER, RANDOM_STATE)),
        ("checkpointed_reentrant", (*NUMBER, RANDOM_STATE)),
    ],
)
def test_every_request_of_an_operator_is_estimated_in_its_order(name, own):
    # compare().own raises where one is missing or out of turn
    for step in compared(name).own:
        assert {size for size, _ in step} <= set(own)


@pytest.mark.parametrize("name", ["small_resnet", "lstm"])
def test_only_kernels_own_memory_is_missing(name):
    comparison = compared(name)
    pairs = zip(comparison.estimated.requests, comparison.measured.requests, strict=True)
    for estimated, measured in pairs:
        sizes = Counter(size for size, _ in estimated)
        sizes.subtract(size for size, _ in measured)
        assert not +sizes


def test_peaks_differ_by_numbers_alone():
    comparison = compared("mlp")
    for estimated, measured in zip(
        comparison.estimated.peaks, comparison.measured.peaks, strict=True
    ):
        assert 0 <= measured - estimated <= sum(NUMBER)
