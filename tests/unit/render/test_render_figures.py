from pathlib import Path

import pytest

from tensorlens.render import (
    clipped,
    dedented,
    device_names,
    duration,
    printable,
    short_path,
    size,
    width,
)


@pytest.mark.parametrize(
    ("time_ns", "text"),
    [
        (0, "0 ns"),
        (999, "999 ns"),
        (1000, "1.00 us"),
        (999_994, "999.99 us"),
        (999_996, "1.00 ms"),
        (1_204_999, "1.20 ms"),
        (999_996_000, "1.00 s"),
        (75_310_000_000, "75.31 s"),
    ],
)
def test_format_duration(time_ns: int, text: str) -> None:
    assert duration(time_ns) == text


def test_an_unknown_size_is_not_zero() -> None:
    assert (size(None), size(0), size(-2048, signed=True)) == ("n/a", "0 B", "-2.00 KiB")


@pytest.mark.parametrize(
    ("names", "text"),
    [
        ([], ""),
        (["cpu"], "cpu"),
        (["cuda:0", "cuda:1"], "cuda:0,1"),
        (["cuda:2", "cuda:0", "cuda:1"], "cuda:0-2"),
        (["cpu", "cuda:0", "cuda:2", "cuda:3", "cuda:4", "cuda:7"], "cpu, cuda:0,2-4,7"),
        (["xpu:1", "cuda:1", "mps"], "xpu:1, cuda:1, mps"),
    ],
)
def test_format_device_names(names: list[str], text: str) -> None:
    assert device_names(names) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("x = 1\n", "x = 1"),
        ("\tx", "    x"),
        ("a\tb", "a   b"),
        ("\x1b[1;31mred\x1b[0m", "red"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1b]8;;http://x\x1b\\link", "link"),
        # an escape that never ends takes nothing with it
        ("a\x1b]b", "ab"),
        ("\x9b31mred", "red"),
        ("bell\x07 null\x00 delete\x7f", "bell null delete"),
        ("\u202eright to left\u2066", "right to left"),
        ("one\r\ntwo", "one  two"),
        ("\x0cclass A:", "class A:"),
        ("no\xa0break\u3000wide", "no break  wide"),
        ("記憶體 é ü", "記憶體 é ü"),
        ("\udcff", "\ufffd"),
        ("  ", ""),
    ],
)
def test_printable_text(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_dedent_takes_the_indentation_of_the_first_line() -> None:
    lines = ["", "    def f():", '        t = """', "left", "  half", '        """', "", "\tx"]
    assert dedented(lines) == ["", "def f():", '    t = """', "left", "half", '    """', "", "x"]


@pytest.mark.parametrize(
    ("text", "columns"),
    [("", 0), ("abc", 3), ("記憶", 4), ("e\u0301", 1), ("\uff46", 2), ("😀", 2)],
)
def test_display_width(text: str, columns: int) -> None:
    assert width(text) == columns


@pytest.mark.parametrize(
    ("text", "room", "ellipsis", "cut"),
    [
        ("abcdef", 6, "…", "abcdef"),
        ("abcdef", 5, "…", "abcd…"),
        ("abcdef", 5, "...", "ab..."),
        # half of a wide character does not fit
        ("記憶體", 6, "…", "記憶體"),
        ("記憶體", 5, "…", "記憶…"),
        ("記憶體", 4, "…", "記…"),
    ],
)
def test_clipped_text(text: str, room: int, ellipsis: str, cut: str) -> None:
    assert clipped(text, room, ellipsis) == cut
    assert width(clipped(text, room, ellipsis)) <= room


@pytest.mark.parametrize(
    ("filename", "shown"),
    [
        (str(Path.cwd() / "nets" / "model.py"), "nets/model.py"),
        ("/opt/lib/python3.12/site-packages/torch/nn/functional.py", "torch/nn/functional.py"),
        ("/elsewhere/me/project/nets/model.py", ".../project/nets/model.py"),
        ("/elsewhere/train.py", "/elsewhere/train.py"),
        ("nets/of/another/machine.py", "nets/of/another/machine.py"),
    ],
)
def test_a_path_is_shown_in_one_way(filename: str, shown: str) -> None:
    assert short_path(filename) == shown
