"""PYTORCH_CUDA_ALLOC_CONF, against what torch 2.13 makes of the same texts."""

import pytest

from tensorlens.errors import UsageError
from tensorlens.planning.allocators import Settings
from tensorlens.planning.allocators.settings import settings_text

MIB = 1 << 20
NOTHING = Settings()


@pytest.mark.parametrize("text", ["", " ", "backend:native", "pinned_use_background_threads:True"])
def test_what_sets_nothing_for_a_device(text):
    assert Settings.parse(text) == NOTHING
    assert NOTHING.max_split_size is None
    assert NOTHING.max_non_split_rounding == NOTHING.large_segment_size == 20 * MIB


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("expandable_segments:True", Settings(expandable_segments=True)),
        ("expandable_segments : True", Settings(expandable_segments=True)),
        ("expandable_segments:True,expandable_segments:False", NOTHING),
        ("max_split_size_mb:20", Settings(max_split_size=20 * MIB)),
        ("max_split_size_mb:30,", Settings(max_split_size=30 * MIB)),
        ("max_non_split_rounding_mb:50", Settings(max_non_split_rounding=50 * MIB)),
        ("garbage_collection_threshold:0.5", Settings()),
        ("per_process_memory_fraction:1.0", Settings()),
        (
            "large_segment_size_mb:21",
            Settings(large_segment_size=21 * MIB, max_non_split_rounding=21 * MIB),
        ),
        (
            "max_split_size_mb:30,large_segment_size_mb:25",
            Settings(
                max_split_size=30 * MIB,
                large_segment_size=25 * MIB,
                max_non_split_rounding=25 * MIB,
            ),
        ),
    ],
)
def test_options(text, expected):
    assert Settings.parse(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("4", [4] * 16),
        ("[64:8,256:4,>:1]", [8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1, 1, 1]),
        ("[64:8,256:4,>:1,]", [8, 8, 8, 8, 8, 8, 8, 0, 4, 1, 1, 1, 1, 1, 1, 1]),
        ("[64:8,256:4]", [8, 8, 8, 8, 8, 8, 8, 0, 4, 0, 0, 0, 0, 0, 0, 0]),
        ("[256:4,64:8,>:2]", [4, 4, 4, 4, 4, 4, 8, 2, 2, 2, 2, 2, 2, 2, 2, 2]),
        ("[64:8,>:4,128:2]", [8, 8, 8, 8, 8, 8, 8, 2, 4, 4, 4, 4, 4, 4, 4, 4]),
        ("[>:4]", [0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]),
        ("[1:4]", [4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]),
        ("[131072:4]", [4] * 16),
    ],
)
def test_divisions(value, expected):
    settings = Settings.parse(f"roundup_power2_divisions:{value}")
    assert list(settings.roundup_power2_divisions) == expected


@pytest.mark.parametrize("value", ["[]", "[64:0]"])
def test_divisions_of_none(value):
    assert Settings.parse(f"roundup_power2_divisions:{value}") == NOTHING


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("foo:1", "'foo' is no option"),
        ("expandable_segments=True", "no list of NAME:VALUE"),
        ("expandable_segments:", "no list of NAME:VALUE"),
        ("expandable_segments:true", "True or False is wanted"),
        ("max_split_size_mb:19", "at least 20"),
        ("max_split_size_mb:x", "a whole number"),
        ("max_split_size_mb:30,large_segment_size_mb:40", "at least 40"),
        ("large_segment_size_mb:10", "at least 11"),
        ("per_process_memory_fraction:0.25", "give the bytes as the capacity"),
        ("roundup_power2_divisions:3", "powers of two"),
        ("roundup_power2_divisions:[63:8]", "powers of two"),
        ("roundup_power2_divisions:[64:8", "no list of NAME:VALUE"),
        ("roundup_power2_divisions:[64]", "a list such as"),
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
