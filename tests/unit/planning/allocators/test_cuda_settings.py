"""PYTORCH_CUDA_ALLOC_CONF, against what torch 2.13 makes of the same texts."""

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning.allocators import Settings, settings_text

MIB = 1 << 20
NOTHING = Settings()


@pytest.mark.parametrize("text", ["", " ", "backend:native", "pinned_use_background_threads:True"])
def test_what_sets_nothing_for_a_device(text):
    assert Settings.parse(text) == NOTHING
    assert NOTHING.max_split_size is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("expandable_segments:True", Settings(expandable_segments=True)),
        ("expandable_segments : True", Settings(expandable_segments=True)),
        ("expandable_segments:True,expandable_segments:False", NOTHING),
        ("max_split_size_mb:20", Settings(max_split_size=20 * MIB)),
        ("max_split_size_mb:30,", Settings(max_split_size=30 * MIB)),
        ("garbage_collection_threshold:0.5", Settings()),
        ("per_process_memory_fraction:1.0", Settings()),
    ],
)
def test_options(text, expected):
    assert Settings.parse(text) == expected


def test_divisions():
    settings = Settings.parse("roundup_power2_divisions:4")
    assert list(settings.roundup_power2_divisions) == [4] * 16


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("foo:1", "'foo' is no option"),
        ("expandable_segments=True", "no list of NAME:VALUE"),
        ("expandable_segments:", "no list of NAME:VALUE"),
        ("expandable_segments:true", "True or False is wanted"),
        ("max_split_size_mb:19", "at least 20"),
        ("max_split_size_mb:x", "a whole number"),
        ("large_segment_size_mb:40", "cannot be simulated"),
        ("max_non_split_rounding_mb:50", "cannot be simulated"),
        ("per_process_memory_fraction:0.25", "give the bytes as the capacity"),
        ("roundup_power2_divisions:3", "a power of two"),
        ("roundup_power2_divisions:[64:8]", "give one number"),
        ("roundup_power2_divisions:[64:8", "no list of NAME:VALUE"),
        ("backend:cudaMallocAsync", "cannot be simulated"),
    ],
)
def test_what_torch_would_refuse(text, told):
    with pytest.raises(UsageError, match=told):
        Settings.parse(text)


def test_the_environment():
    older, newer = "PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"
    assert Settings.parse(settings_text({})) == NOTHING
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
def test_segments(size, segment):
    assert NOTHING.segment_size(size) == segment
