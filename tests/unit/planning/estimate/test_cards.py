"""Cards by the names that people give them, and what is outside of torch's memory on them."""

from __future__ import annotations

import pytest

from tensorlens import Card
from tensorlens.errors import UsageError
from tensorlens.planning import DEFAULT, H100, Trace, find_card
from tensorlens.planning.estimate import assembly, context_overhead, result
from tensorlens.records import ALLOC, Context

MIB = 2**20


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "NVIDIA H100 80GB HBM3"),
        ("NVIDIA H100 80GB HBM3", "NVIDIA H100 80GB HBM3"),
        ("H100-PCIe", "NVIDIA H100 PCIe"),
        ("h100 nvl", "NVIDIA H100 NVL"),
        ("A100", "NVIDIA A100-SXM4-40GB"),
        ("a100_80GB", "NVIDIA A100-SXM4-80GB"),
        ("a100 80g", "NVIDIA A100-SXM4-80GB"),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB"),
        ("A10G", "NVIDIA A10G"),
        ("A10", "NVIDIA A10"),
        ("v100-32", "Tesla V100-SXM2-32GB"),
        ("Tesla T4", "Tesla T4"),
        ("rtx 4090", "NVIDIA GeForce RTX 4090"),
        ("4090", "NVIDIA GeForce RTX 4090"),
        ("GeForceRTX4090", "NVIDIA GeForce RTX 4090"),
        ("RTX-2080-Ti", "NVIDIA GeForce RTX 2080 Ti"),
        ("a6000", "NVIDIA RTX A6000"),
        ("rtx 6000 ada", "NVIDIA RTX 6000 Ada Generation"),
        ("nvidia_l40s", "NVIDIA L40S"),
    ],
)
def test_a_card_is_found_by_what_people_call_it(text, name):
    assert find_card(text).name == name


@pytest.mark.parametrize(
    "text",
    "h100,h100-pcie,h100 nvl,h200,b200,gb200,a100,a100-40gb,a100-80gb,a10,a10g,a30,a40,l4,l40,l40s,"
    "v100-16gb,v100-32gb,t4,p100,rtx 2080 ti,rtx 3060,rtx 3070,rtx 3080,rtx 3090,rtx 4060,rtx 4070,"
    "rtx 4080,rtx 4090,rtx 5080,rtx 5090,a4000,a5000,a6000,titan rtx,titan v,titan xp".split(","),
)
def test_the_usual_names_are_known(text):
    assert isinstance(find_card(text), Card)


def test_figures_of_data_sheets():
    assert H100.capability == (9, 0) and H100.multiprocessors == 132
    assert find_card("a100-80gb").multiprocessors == 108
    assert find_card("a100-80gb").capability == (8, 0)
    assert (
        find_card("rtx 3060").capability == (8, 6) and find_card("rtx 3060").multiprocessors == 28
    )
    assert find_card("rtx 4090").capability == (8, 9)
    assert find_card("v100").capability == (7, 0) and find_card("t4").capability == (7, 5)
    assert find_card("b200").capability == (10, 0) and find_card("rtx 5090").capability == (12, 0)


def test_memory_that_was_read_is_below_what_is_on_the_box():
    for name, gigabytes in (("rtx 3060", 12), ("rtx 4090", 24), ("a100", 40), ("h200", 141)):
        card = find_card(name)
        assert not card.is_nominal
        assert 0.9 * gigabytes * 2**30 < card.memory <= gigabytes * 2**30
    assert find_card("a30").is_nominal and find_card("a30").memory == 24 * 2**30


def test_no_name_is_the_card_that_stands_for_others():
    assert find_card() is DEFAULT and find_card(None).capability == (8, 0)
    assert find_card(H100) is H100


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("titan", ["several", "TITAN RTX", "TITAN V"]),
        ("rtx 6000", ["several", "RTX 6000 Ada", "RTX A6000"]),
        ("h1000", ['no card is known as "h1000"', "h100"]),
        ("4095", ["nearest", "4090"]),
        ("", ["nearest"]),
    ],
)
def test_unknown_card_names_the_nearest(text, words):
    with pytest.raises(UsageError) as caught:
        find_card(text)
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words)


def traced(*operators):
    trace = Trace()
    for number, name in enumerate(operators):
        trace.log.append(ALLOC, "cuda:0", number + 1, 4, number, -1, Context(op=name))
    return trace


def test_host_memory_has_nothing_beside_it():
    assert context_overhead(None, traced("aten::mm")) == ()


def test_a_context_and_kernels_are_apart():
    context, kernels = context_overhead(H100, traced())
    assert (context.name, kernels.name) == (result.CONTEXT, assembly.KERNELS)
    assert context.apart and kernels.apart
    for term in (context, kernels):
        assert 0 < term.nbytes.low < term.nbytes.point < term.nbytes.high < 2**30


def test_the_context_that_was_measured_is_within_its_range():
    (context, _) = context_overhead(find_card("rtx 6000 ada"), traced())
    assert context.nbytes.low <= 426 * MIB <= context.nbytes.high


def test_kernels_grow_with_the_libraries_that_are_used():
    plain = context_overhead(H100, traced("aten::add"))[1].nbytes
    matrices = context_overhead(H100, traced("aten::add", "aten::mm"))[1].nbytes
    images = context_overhead(H100, traced("aten::add", "aten::mm", "aten::convolution"))[1]
    assert plain.high < matrices.high < images.nbytes.high
    assert "cuBLAS" in images.why and "cuDNN" in images.why
