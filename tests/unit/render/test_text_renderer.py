import io
import os
import shutil
import sys
from collections.abc import Callable

import pytest
import rendered_reports as reports
import tabulate
from rendered_reports import GIB, MIB, moved, ran

from tensorlens import LineReport
from tensorlens.render import TextRenderer, width


def text_of(report: LineReport, limit: int = 120) -> str:
    return TextRenderer(width=limit, encoding="utf-8").render(report)


def table_of(text: str) -> list[str]:
    """Return the lines of the first function's table."""
    return next(part for part in text.split("\n\n") if "\nLine  " in part).splitlines()


@pytest.mark.parametrize("limit", [40, 60, 80, 100, 120, 200])
@pytest.mark.parametrize("kind", reports.KINDS)
def test_text_is_clean(kind: str, limit: int) -> None:
    text = text_of(reports.KINDS[kind](), limit)
    assert text.endswith("\n")
    for line in text.splitlines():
        assert line == line.rstrip()
        assert not line or line.isprintable()
        # below this the columns that always stay leave no room for any source
        assert limit < 80 or width(line) <= limit


def test_text_of_one_line() -> None:
    assert text_of(reports.one_line()) == (
        "Memory per line\n"
        "  peak       cpu  2.00 MiB at net.py:8 in Net.forward\n"
        "               return x + x\n"
        "  counter    cpu  counting allocator, exact\n"
        "\n"
        "▲ highest peak   ● most that stayed\n"
        "Net sum: what a line left, all hits added; other lines may free it.\n"
        "\n"
        "Net.forward  net.py:7  1 call  peak 2.00 MiB\n"
        "Line  Hits     Time  Allocated        Peak    Reserved      Net sum  │ Source\n"
        + "─" * 92
        + "\n"
        + "   7"
        + " " * 65
        + "│ def forward(self, x):\n"
        "   8     1  1.00 ms   2.00 MiB  ▲ 2.00 MiB  300.00 MiB  ● +1.00 MiB  │     return x + x\n"
    )


def test_a_terminal_of_80_drops_columns_and_says_so() -> None:
    assert text_of(reports.training(), 80) == (
        "Memory per line\n"
        "  peak       cpu  96.00 MiB at net.py:23 in Net.forward\n"
        "               x = block(x)\n"
        "  counter    cpu  counting allocator, exact\n"
        "\n"
        "▲ highest peak   ● most that stayed\n"
        "Net sum: what a line left, all hits added; other lines may free it.\n"
        "\n"
        "Net.forward  net.py:20  1 call  peak 96.00 MiB\n"
        "Line  Hits     Time         Peak       Net sum  │ Source\n"
        + "─" * 79
        + "\n"
        + "  20"
        + " " * 44
        + "│ def forward(self, x):\n"
        "  21" + " " * 44 + "│     # features\n"
        "  22     4  1.00 ms    64.00 MiB           0 B  │     for block in self.blocks:\n"
        "  23     3  4.50 ms  ▲ 96.00 MiB  ● +30.00 MiB  │         x = block(x)\n"
        "  24     1  1.00 ms    95.00 MiB    -14.00 MiB  │     x = x.mean((2, 3))\n"
        "  25" + " " * 44 + "│\n"
        "  26     1  1.00 ms    80.00 MiB        +512 B  │     return self.head(x)\n"
        "  Left out to fit 80 characters: Allocated, Reserved, Net max, Net first. A\n"
        "    wider terminal, .html and .csv show them.\n"
    )


def test_every_column_of_one_device_fits_120() -> None:
    source = "        x = " + " + ".join(["self.layer(value)"] * 9)
    huge = 1000 * GIB + 230 * MIB
    memory = {"cpu": moved(huge, 2 * huge, reserved=3 * huge, hits=1)}
    text = text_of(reports.report(reports.function((ran(1234, source, memory),))))
    titles = table_of(text)[1].split()
    shown = "Line Hits Time Allocated Peak Reserved Net sum │ Source"
    assert titles == shown.split()
    assert max(map(width, text.splitlines())) == 120
    assert table_of(text)[3].endswith("…")


def test_text_of_eight_devices() -> None:
    table = table_of(text_of(reports.eight_devices()))
    assert [line.split("│")[0].rstrip() for line in table[3:9]] == [
        "  40",
        "  41     1  1.00 ms  cuda:0      3.00 MiB    3.00 MiB  20.00 MiB  ● +3.00 MiB",
        "  42     1  1.00 ms  cuda:0      5.00 MiB  ▲ 9.00 MiB  20.00 MiB    +2.00 MiB",
        "                     cuda:1      2.00 MiB  ▲ 2.00 MiB  20.00 MiB  ● +1.00 MiB",
        "  43     1  1.00 ms  no change",
        "  44     1  1.00 ms  cuda:0      4.00 MiB    5.00 MiB  20.00 MiB    -1.00 MiB",
    ]
    assert table[9].split("│")[0].split() == (
        ["cuda:2-6", "1.00", "MiB", "▲", "2.00", "MiB", "20.00", "MiB", "●", "+1.00", "MiB"]
    )
    assert table[10:] == [
        "  cpu: unchanged at 1.00 GiB (2.00 GiB reserved)",
        "  cuda:7: unchanged at 512 B (2.00 MiB reserved)",
    ]
    # the source stands once, at the first row of its line
    assert [line.partition("│")[2] for line in table[5:7]] == ["     y = first(x).to('cuda:1')", ""]


def test_a_line_never_run_is_blank_and_a_line_without_change_is_zero() -> None:
    table = table_of(text_of(reports.raised()))
    assert table[3].split() == ["1", "│", "def", "f():"]
    assert table[4].split("│")[0].split() == (
        ["✗", "2", "1", "900", "ns", "0", "B", "0", "B", "0", "B", "0", "B"]
    )


def test_the_exception_stands_below_the_table() -> None:
    text = text_of(reports.raised())
    table = table_of(text)
    assert table[-1] == "  ✗ line 2 raised RuntimeError: out of memory: tried to allocate 10 PB"
    assert "\n\n✗ raised\n\n" in text


def test_an_unknown_figure_is_not_zero() -> None:
    table = table_of(text_of(reports.unknown_figures()))
    assert table[4] == (
        "   2     1  1.00 ms   4.00 KiB   n/a       n/a  ● +4.00 KiB  │     a = make()"
    )
    assert table[5] == "  n/a: peak, reserved of mps: Metal keeps no peak"


def test_functions_never_called_are_a_line_each_without_a_table() -> None:
    uncalled = reports.never_called().functions[0]
    report = reports.report(uncalled, *reports.one_line().functions, uncalled)
    text = text_of(report)
    assert "\n\nNet.unused  net.py:5  never called\nNet.unused  net.py:5  never called\n" in text
    assert "return 1" not in text


def test_a_function_never_called_needs_no_note() -> None:
    function = reports.function(reports.never_called().functions[0].lines, calls=0)
    assert "Net.forward  net.py:5  never called\n" in text_of(reports.report(function))


def test_a_compiled_function_is_one_row() -> None:
    assert table_of(text_of(reports.compiled())) == [
        "Net.fast  net.py:5  3 calls",
        "Line  Hits  │ Source",
        "─" * 71,
        "   5     3  │ (compiled by torch.compile: its lines were compiled away)",
    ]


def test_hostile_source_is_escaped() -> None:
    text = text_of(reports.hostile())
    sources = [line.partition("│ ")[2] for line in table_of(text)[3:8]]
    assert sources == [
        "def f(self):",
        "    s = '<script>alert(1)</script>' & \"q\"",
        "    print('red flip', '記憶體用量')",
        "",
        "    t = 'a,b; =1+1' # \ufffd",
    ]
    assert "<b>f</b>  a<i>.py:1  1 call\n" in text
    assert "note: </style><script>\n" in text


def test_numbers_in_the_source_stay_as_they_are_written() -> None:
    sources = ["1e3", "007.50", "None", "  -0", "\x01"]
    lines = tuple(ran(n, source, {"cpu": moved(0, 0)}) for n, source in enumerate(sources, 1))
    table = table_of(text_of(reports.report(reports.function(lines))))
    assert [line.partition("│ ")[2] for line in table[3:]] == ["1e3", "007.50", "None", "  -0", ""]


def test_a_thousand_lines_fold_those_not_run() -> None:
    table = table_of(text_of(reports.thousand_lines()))
    # 1 def, then ten times: a line, a fold, a line, the line that ran
    assert len(table) == 3 + 1 + 10 * 4 - 1
    assert table[4].split("│ ")[1] == "… 97 lines not run"


def test_header_names_process_provenance_and_notes() -> None:
    report = LineReport(
        (), (reports.CPU,), "estimated", "process 4711 (SpawnProcess-1)", ("a debugger cut in",)
    )
    assert text_of(report) == (
        "Memory per line (estimated), process 4711 (SpawnProcess-1)\n"
        "  cpu  counting allocator, exact\n"
        "  note: a debugger cut in\n"
        "  no function was profiled\n"
    )


def test_an_empty_report() -> None:
    assert text_of(reports.empty()) == "Memory per line\n  no function was profiled\n"


def test_a_long_path_moves_to_its_own_line_whole() -> None:
    function = reports.one_line().functions[0]
    path = "very/" * 30 + "net.py"
    moved_function = type(function)(
        function.name, function.qualname, "net", path, 7, 1, function.lines
    )
    assert table_of(text_of(reports.report(moved_function)))[:2] == [
        "Net.forward  1 call  peak 2.00 MiB",
        f"{path}:7",
    ]


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_a_narrow_encoding_gets_ascii_marks(encoding: str) -> None:
    text = TextRenderer(width=120, encoding=encoding).render(reports.hostile())
    text.encode(encoding)
    assert "| " in text
    assert r"'\u8a18\u61b6" in text
    marked = TextRenderer(width=120, encoding=encoding).render(reports.training())
    assert "^ 96.00 MiB" in marked
    assert "\n^ highest peak   * most that stayed\n" in marked


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    class Terminal(io.StringIO):
        def __init__(self, answer: bool) -> None:
            super().__init__()
            self.answer = answer

        def isatty(self) -> bool:
            return self.answer

    def use(answer: bool) -> None:
        monkeypatch.setattr(sys, "stdout", Terminal(answer))
        size = os.terminal_size((90, 24))
        monkeypatch.setattr(shutil, "get_terminal_size", lambda: size)
        monkeypatch.delenv("COLUMNS", raising=False)

    return use


def test_width_is_the_terminals_where_there_is_one(terminal: Callable[[bool], None]) -> None:
    terminal(True)
    assert TextRenderer().width == 90
    terminal(False)
    assert TextRenderer().width == 120


@pytest.mark.parametrize("answer", [True, False])
def test_columns_of_the_environment_hold_also_where_it_is_piped(
    terminal: Callable[[bool], None], monkeypatch: pytest.MonkeyPatch, answer: bool
) -> None:
    terminal(answer)
    monkeypatch.setenv("COLUMNS", "80")
    assert TextRenderer().width == 80
    monkeypatch.setenv("COLUMNS", "wide")
    assert TextRenderer().width == (90 if answer else 120)


@pytest.mark.parametrize("closed", [False, True])
def test_without_standard_output_it_still_renders(
    monkeypatch: pytest.MonkeyPatch, closed: bool
) -> None:
    stream = None
    if closed:
        stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
        stream.close()
    monkeypatch.setattr(sys, "stdout", stream)
    assert TextRenderer().width == 120
    assert TextRenderer().render(reports.training()).startswith("Memory per line\n")


def test_tabulate_is_left_as_the_program_had_it(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = text_of(reports.training())
    before = {name: value for name, value in vars(tabulate).items() if name.isupper()}
    text_of(reports.training())
    assert {name: value for name, value in vars(tabulate).items() if name.isupper()} == before
    # and the program's own settings do not show in the report
    monkeypatch.setattr(tabulate, "PRESERVE_WHITESPACE", True)
    monkeypatch.setattr(tabulate, "MIN_PADDING", 7)
    assert text_of(reports.training()) == expected


def test_the_report_prints_itself(terminal: Callable[[bool], None]) -> None:
    terminal(False)
    assert str(reports.training()) == text_of(reports.training())
