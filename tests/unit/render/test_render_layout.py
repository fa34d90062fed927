from dataclasses import replace

import pytest
import rendered_reports as reports
from rendered_reports import KIB, MIB, moved, ran

from tensorlens.lines import (
    DeviceSource,
    Fold,
    Line,
    LineMemory,
    ShownLine,
    devices_of,
    layouts,
    overview,
)
from tensorlens.render import device_sources


def test_marks_stand_on_the_first_of_equals() -> None:
    lines = tuple(ran(number, "x", {"cpu": moved(0, MIB, peak=3 * MIB)}) for number in (1, 2, 3))
    found = overview(layouts(reports.report(reports.function(lines))))
    assert [each.row.line.lineno for each in found.peaks] == [1]
    assert [each.row.line.lineno for each in found.growths] == [1]


def test_a_function_that_only_frees_has_no_growth() -> None:
    lines = (ran(1, "del a", {"cpu": moved(MIB, 0)}), ran(2, "x", {"cpu": moved(0, 0)}))
    found = overview(layouts(reports.report(reports.function(lines))))
    assert [each.row.line.lineno for each in found.peaks] == [1]
    assert found.growths == ()


def test_a_level_that_no_line_rose_to_is_no_peak_of_a_line() -> None:
    still = replace(moved(MIB, MIB), rise=0)
    lines = (ran(1, "x", {"cpu": still}), ran(2, "y", {"cpu": still}))
    (layout,) = layouts(reports.report(reports.function(lines)))
    assert len(layout.entries) == 2
    found = overview([layout])
    assert (found.peaks, found.growths) == ((), ())


def test_peak_is_marked_in_the_function_called_and_not_in_its_caller() -> None:
    caller = ran(2, "inner()", {"cpu": replace(moved(0, MIB, peak=9 * MIB), rise=9 * MIB)})
    called = ran(5, "x = make()", {"cpu": replace(moved(MIB, MIB, peak=9 * MIB), rise=8 * MIB)})
    functions = reports.function((caller,), name="outer"), reports.function((called,), name="inner")
    found = overview(layouts(reports.report(*functions)))
    assert [each.text for each in found.peaks] == ["net.py:5 in Net.inner"]
    assert [each.text for each in found.places] == ["net.py:5 in Net.inner"]


def test_of_a_caller_that_rose_as_far_its_time_tells() -> None:
    memory = {"cpu": moved(0, 0, peak=9 * MIB)}
    caller = ran(2, "inner()", memory, ms=5)
    # it was called from elsewhere too
    called = ran(5, "x = make()", memory, hits=3, ms=12)
    functions = reports.function((caller,), name="outer"), reports.function((called,), name="inner")
    found = overview(layouts(reports.report(*functions)))
    assert [each.text for each in found.places] == ["net.py:5 in Net.inner"]


def test_overview_has_the_highest_peaks_and_what_grew_most() -> None:
    # the later the line the higher its peak; of the first three the growth is the largest
    figures = [
        moved(0, (20 - number if number < 4 else 1) * KIB, peak=number * MIB)
        for number in range(1, 16)
    ]
    lines = tuple(ran(number, "x", {"cpu": each}) for number, each in enumerate(figures, 1))
    found = overview(layouts(reports.report(reports.function(lines))))
    shown = [each.row.line.lineno for each in found.places]
    assert shown == [15, 14, 13, 12, 11, 10, 4, 3, 2, 1]
    assert [each.row.line.lineno for each in found.growths] == [1]


def test_a_rise_and_fall_within_a_line_is_a_change() -> None:
    idle = moved(KIB, KIB)
    lines = (ran(1, "x", {"cpu": idle, "cuda:0": moved(MIB, MIB, peak=2 * MIB)}),)
    (layout,) = layouts(
        reports.report(reports.function(lines), devices=(reports.CPU, reports.CUDA[0]))
    )
    assert [entry.devices for entry in layout.entries] == [("cuda:0",)]
    assert layout.remarks == ("cpu: unchanged at 1.00 KiB (0 B reserved)",)


def test_equal_devices_share_a_row() -> None:
    small, large = moved(0, MIB), moved(MIB, 9 * MIB)
    lines = (
        ran(1, "x", {"cuda:0": small, "cuda:1": small, "cuda:2": small}),
        ran(2, "y", {"cuda:0": large, "cuda:1": large}),
    )
    (layout,) = layouts(reports.report(reports.function(lines), devices=reports.CUDA))
    assert [entry.devices for entry in layout.entries] == [
        ("cuda:0", "cuda:1", "cuda:2"),
        ("cuda:0", "cuda:1"),
    ]
    found = overview([layout])
    assert [(each.entry.devices, each.row.line.lineno) for each in found.peaks] == [
        (("cuda:0", "cuda:1"), 2),
        (("cuda:0", "cuda:1", "cuda:2"), 1),
    ]


def test_one_active_device_of_several_shows_every_line() -> None:
    lines = (
        ran(1, "x", {"cpu": moved(0, 0), "cuda:0": moved(0, MIB)}),
        ran(2, "y", {"cpu": moved(0, 0), "cuda:0": moved(MIB, MIB)}),
    )
    (layout,) = layouts(
        reports.report(reports.function(lines), devices=(reports.CPU, reports.CUDA[0]))
    )
    assert [entry.devices for entry in layout.entries] == [("cuda:0",), ("cuda:0",)]


def test_a_device_without_any_figure_is_a_remark_among_several() -> None:
    nothing = LineMemory(None, None, None, None, None, None)
    fields = ("allocated", "peak", "reserved", "net", "net_max", "net_first")
    blind = DeviceSource("mps", "none", "", dict.fromkeys(fields, "this torch cannot tell"))
    lines = (ran(1, "x", {"cpu": moved(0, MIB), "mps": nothing}),)
    (layout,) = layouts(reports.report(reports.function(lines), devices=(reports.CPU, blind)))
    assert [entry.devices for entry in layout.entries] == [("cpu",)]
    assert layout.remarks == (
        "n/a: allocated, peak, reserved, net, net max, net first of mps: this torch cannot tell",
    )


def test_a_missing_figure_without_a_reason_says_so() -> None:
    lines = (ran(1, "x", {"cpu": LineMemory(0, None, 0, 0, 0, 0)}),)
    (layout,) = layouts(reports.report(reports.function(lines)))
    assert layout.remarks == ("n/a: peak of cpu: no reason was given",)


def unrun(count: int) -> tuple[Line, ...]:
    return tuple(Line(number, f"# {number}") for number in range(2, 2 + count))


def test_five_lines_not_run_stay_and_six_fold() -> None:
    first = ran(1, "x", {"cpu": moved(0, 0)})
    (short,) = layouts(reports.report(reports.function((first, *unrun(5)))))
    assert [row.line.lineno for row in short.rows] == list(range(1, 7))
    (long,) = layouts(reports.report(reports.function((first, *unrun(6)))))
    kinds = [row.line.lineno if isinstance(row, ShownLine) else row.text for row in long.body]
    assert kinds == [1, 2, "4 lines not run", 7]


@pytest.mark.parametrize(("count", "folded"), [(60, False), (120, True)])
def test_lines_without_a_change_fold_in_long_tables(count: int, folded: bool) -> None:
    quiet = {"cpu": moved(MIB, MIB)}
    lines = [ran(number, f"x{number} = 1", quiet) for number in range(1, count)]
    lines[20] = Line(21, "# comment")
    lines[40] = ran(41, "y = make()", {"cpu": moved(MIB, 3 * MIB)})
    (layout,) = layouts(reports.report(reports.function(tuple(lines))))
    kinds = [row.line.lineno if isinstance(row, ShownLine) else row.text for row in layout.body]
    if not folded:
        assert kinds == list(range(1, count))
        return
    first, second = "38 lines without a change", "76 lines without a change"
    assert kinds == [1, first, 40, 41, 42, second, 119]


def test_a_fold_keeps_its_lines() -> None:
    (layout,) = layouts(reports.thousand_lines())
    folds = [row for row in layout.body if isinstance(row, Fold)]
    assert [len(fold.rows) for fold in folds] == [97] * 10
    assert [row.line.lineno for row in folds[0].rows] == list(range(2, 99))
    shown = sum(len(row.rows) if isinstance(row, Fold) else 1 for row in layout.body)
    assert shown == 1000


def test_a_line_that_raised_before_it_ended_is_not_folded() -> None:
    lines = list(unrun(40))
    lines[20] = Line(22, "boom()", raised="ValueError: no")
    (layout,) = layouts(reports.report(reports.function(tuple(lines))))
    assert [row.line.lineno for row in layout.raised] == [22]


def test_devices_only_the_lines_know_are_known() -> None:
    lines = (ran(1, "x", {"xpu:0": moved(0, 0)}),)
    assert devices_of(reports.report(reports.function(lines))) == ("cpu", "xpu:0")


def test_header_groups_devices_of_one_source() -> None:
    devices = reports.eight_devices().devices
    assert device_sources((each.name, each.source, each.precision) for each in devices) == (
        ("cpu", "counting allocator, exact"),
        ("cuda:0-7", "CUDA caching allocator, to 512 B"),
    )
