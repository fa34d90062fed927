import pytest

from tensorlens import TensorlensError
from tensorlens.errors import UsageError
from tensorlens.units import format_bytes, parse_bytes

KIB, MIB, GIB, TIB, PIB = (1024**power for power in range(1, 6))


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1, "1 B"),
        (1023, "1023 B"),
        (1024, "1.00 KiB"),
        (1025, "1.00 KiB"),
        (1536, "1.50 KiB"),
        # 1023.99 KiB is 1048565.76 B, and half of the next hundredth is 5.12 B further
        (1048570, "1023.99 KiB"),
        (1048571, "1.00 MiB"),
        (MIB - 1, "1.00 MiB"),
        (MIB, "1.00 MiB"),
        (round(1023.999 * MIB), "1.00 GiB"),
        (GIB, "1.00 GiB"),
        (TIB, "1.00 TiB"),
        (PIB, "1.00 PiB"),
        # no larger unit is left to round up to
        (1024 * PIB, "1024.00 PiB"),
        (-1, "-1 B"),
        (-1023, "-1023 B"),
        (-1024, "-1.00 KiB"),
        (-round(1023.999 * MIB), "-1.00 GiB"),
    ],
)
def test_formatted_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (512, "+512 B"), (-512, "-512 B"), (3 * GIB, "+3.00 GiB")]
)
def test_format_bytes_signed(count: int, text: str) -> None:
    assert format_bytes(count, signed=True) == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (512, 512),
        ("512 B", 512),
        ("0", 0),
        ("512B", 512),
        ("512 b", 512),
        ("1K", KIB),
        ("1 kb", KIB),
        ("1 KiB", KIB),
        ("1.5m", 3 * MIB // 2),
        ("  24 GiB\n", 24 * GIB),
        ("2TB", 2 * TIB),
        ("1 PiB", PIB),
        ("0.5 KiB", 512),
        ("0.001 KiB", 1),
    ],
)
def test_parsed_bytes(text: str | int, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["24", "1.5", " 7 "])
def test_a_size_without_a_unit_is_refused(text: str) -> None:
    number = text.strip()
    with pytest.raises(UsageError) as raised:
        parse_bytes(text)
    expected = f"{text!r} has no unit: write '{number} GiB', or '{number} B' for bytes"
    assert str(raised.value) == expected


@pytest.mark.parametrize(
    "text",
    [
        *("", " ", "GiB", "-1", "-1 GiB", "1 XiB", "1 GiBs", "1,5 GiB", "1 2", "1e3", ".5", "1."),
        # beyond the numbers that the machine has
        "9" * 400 + " GiB",
    ],
)
def test_parse_bytes_names_what_it_cannot_read(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_bytes(text)
    assert (
        str(raised.value)
        == f"{text!r} is not a size: write for example '512 B', '64 MiB' or '24 GiB'"
    )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("count", [0, 1, 1023, KIB, 5 * MIB, 24 * GIB, 3 * PIB])
def test_whole_units_survive_both_ways(count: int) -> None:
    assert parse_bytes(format_bytes(count)) == count


def test_a_usage_error_is_a_value_error_with_exit_code_2() -> None:
    assert issubclass(UsageError, TensorlensError)
    assert issubclass(UsageError, ValueError)
    assert (TensorlensError.exit_code, UsageError.exit_code) == (1, 2)
