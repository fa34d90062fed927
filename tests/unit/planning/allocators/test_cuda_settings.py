"""PYTORCH_CUDA_ALLOC_CONF, against what torch 2.13 makes of the same texts."""

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning.allocators import parse_settings, settings_text
from tensorlens.records import Rules, segment_size

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Rules()),
        (" ", Rules()),
        ("backend:native", Rules()),
        ("expandable_segments:True", Rules(expandable_segments=True)),
        ("expandable_segments : True", Rules(expandable_segments=True)),
        ("expandable_segments:True,expandable_segments:False", Rules()),
        ("max_split_size_mb:20", Rules(max_split_size=20 * MIB)),
        ("max_split_size_mb:30,", Rules(max_split_size=30 * MIB)),
    ],
)
def test_allocator_options(text, expected):
    assert parse_settings(text) == (expected, ())


def test_options_that_are_not_simulated():
    text = "roundup_power2_divisions:[256:1,>:4],max_split_size_mb:30,foo:1"
    rules, unsimulated = parse_settings(text)
    assert rules == Rules(max_split_size=30 * MIB)
    assert unsimulated == ("roundup_power2_divisions", "foo")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("expandable_segments=True", "no list of NAME:VALUE"),
        ("expandable_segments:", "no list of NAME:VALUE"),
        ("expandable_segments:true", "expandable_segments has no value 'true'"),
        ("max_split_size_mb:x", "max_split_size_mb has no value 'x'"),
        ("roundup_power2_divisions:[64:8", "no list of NAME:VALUE"),
        ("backend:cudaMallocAsync", "cannot be simulated"),
    ],
)
def test_unreadable_allocator_options(text, told):
    with pytest.raises(UsageError, match=told):
        parse_settings(text)


def test_allocator_options_of_the_environment():
    older, newer = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
    assert settings_text({}) == ""
    assert settings_text({newer: "max_split_size_mb:30"}) == "max_split_size_mb:30"
    both = {newer: "max_split_size_mb:30", older: "max_split_size_mb:40"}
    assert settings_text(both) == "max_split_size_mb:40"


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (512, 2 * MIB),
        (MIB, 2 * MIB),
        (MIB + 512, 20 * MIB),
        (10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (21 * MIB, 22 * MIB),
    ],
)
def test_segment_sizes(size, segment):
    assert segment_size(size) == segment
