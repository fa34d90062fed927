"""Ranks beside each other: spread, the odd one and what it holds, who is missing."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from tensorlens import JobReport, LeakReport, LineReport, Snapshot
from tensorlens.errors import UsageError
from tensorlens.jobs import ItemDifference, RankReport, Spread, job_report, merged, rank_of
from tensorlens.leaks import Leak
from tensorlens.lines import FunctionLines, Line, LineMemory
from tensorlens.records import Ledger, Names, Part, SourceLine, TensorTable

KIB = 1024


def a_rank(rank, peak, size=None, **items):
    return RankReport(rank, size, f"run.rank{rank}.tlens", "recording", "tensor", "cuda:0",
                {"peak": peak}, items, {})  # fmt: skip


def test_the_rank_furthest_from_the_median_stands_out():
    peaks = [(0, 100), (1, 100), (2, 160), (3, 90)]
    report = job_report([a_rank(rank, peak, same=90, more=peak - 90) for rank, peak in peaks])
    assert report.spreads == (Spread("peak", 90, 3, 100, 160, 2),)
    assert (report.odd.rank, report.odd.other_rank, report.odd.difference) == (2, 0, 60)
    assert report.odd.items == (ItemDifference("more", 70, 10),)
    assert report.missing == () and report.world_size is None


def test_equal_ranks_have_no_odd_one():
    report = job_report([a_rank(rank, 7, same=7) for rank in range(3)])
    assert report.odd is None
    assert "3 ranks: all have the same peak" in str(report)


def test_stages_of_a_pipeline_are_compared_apart():
    def of_stage(rank, peak, *parameters):
        names = frozenset(parameters)
        return replace(a_rank(rank, peak, 4, x=peak), parameters=names)

    stages = [of_stage(0, 900, "embedding"), of_stage(1, 900, "embedding")]
    stages += [of_stage(2, 100, "head"), of_stage(3, 130, "head")]
    report = job_report(stages)
    assert [each.stage for each in report.ranks] == [0, 0, 1, 1]
    assert report.spreads == (
        Spread("peak", 900, 0, 900, 900, 0, 0),
        Spread("peak", 100, 2, 100, 130, 3, 1),
    )
    assert (report.odd.rank, report.odd.other_rank, report.odd.difference) == (3, 2, 30)
    assert "its peak is 30 B more than the median of its stage" in str(report)
    assert JobReport.from_json(report.to_json()) == report
    # one parameter in common: no stages
    shared = job_report([*stages[:2], of_stage(2, 100, "embedding", "head")])
    assert [each.stage for each in shared.ranks] == [None] * 3


def test_ranks_without_a_record_are_named():
    report = job_report([a_rank(rank, 8, 4, a=8) for rank in (3, 1)])
    assert [each.rank for each in report.ranks] == [1, 3]
    assert (report.world_size, report.missing) == (4, (0, 2))
    assert "There is no record of ranks 0, 2" in str(report)
    assert job_report([a_rank(2, 8)]).missing == (0, 1)


def test_a_report_is_read_again_as_it_was():
    report = job_report([a_rank(0, 10, 2, a=10), a_rank(1, 30, 2, a=30)])
    assert JobReport.from_json(report.to_json()) == report
    lines = report.to_csv().splitlines()
    assert lines[:2] == ["rank,device,peak,file", "0,cuda:0,10,run.rank0.tlens"]
    assert "2 ranks: rank 1 has 20 B more peak than rank 0" in report.to_html()


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("out/run.rank3.4711.tlens", 3),
        ("rank12.json", 12),
        ("rank0.ep0-ba10.memory_snapshot.pickle", 0),
        ("000007_step_40.pickle", 7),
        ("ranking3.json", None),
        ("run.tlens", None),
    ],
)
def test_a_rank_is_told_by_the_name_of_its_file(name, rank):
    found = rank_of(LeakReport((), (), 1, 0, {}, ""), name)
    assert found == (None if rank is None else (rank, None))


def test_rank_in_a_record_goes_before_the_file_name():
    record = Snapshot(TensorTable(), {}, process="rank 5 of 8, process 12")
    assert rank_of(record, "run.rank1.json") == (5, 8)


def snapshot(rank, *sizes):
    table = TensorTable()
    names = Names()
    for number, nbytes in enumerate(sizes):
        values = {"nbytes": nbytes, "storage": 1 + number, "storage_nbytes": nbytes, "alias": -1,
                  "name": names.text(f"weight{number}")}  # fmt: skip
        for column in table.COLUMNS:
            getattr(table, column).append(values.get(column, -1 if column != "role" else 0))
        table.device[-1] = table.dtype[-1] = table.shape[-1] = table.offset[-1] = 0
    table.names, table.devices, table.dtypes, table.shapes = names, ["cuda:1"], ["int8"], [()]
    total = sum(sizes)
    ledger = Ledger("cuda:1", "s", "exact", total, total, 0, total, 0, 0, total, total)
    return Snapshot(table, {"cuda:1": ledger}, process=f"rank {rank} of 2")


def test_snapshots_are_compared_by_what_is_allocated():
    report = merged({"a": snapshot(0, 4 * KIB), "b": snapshot(1, 4 * KIB, KIB)})
    assert [dict(each.figures)["allocated"] for each in report.ranks] == [4 * KIB, 5 * KIB]
    assert report.odd.items == (ItemDifference("weight1", KIB, 0),)
    assert {each.device for each in report.ranks} == {"cuda:1"}


def test_a_rank_with_a_context_on_the_device_of_another_is_named():
    parts = [Part("other", "context", "context of this process", 400 << 20, "")]
    first, second = snapshot(0, KIB), snapshot(1, KIB)
    second.ledger["cuda:0"] = Ledger(
        "cuda:0", "s", "exact", 0, 0, 0, 2 << 20, 2 << 20, 400 << 20, 402 << 20, 1 << 34, parts
    )
    report = merged({"a": first, "b": second})
    stray = (
        "rank 1 works on cuda:1 and has no tensor on cuda:0, yet holds memory there:"
        " 2.00 MiB reserved, its context"
    )
    assert report.notes == (f"{stray} 400.00 MiB",)
    assert "note: rank 1 works on cuda:1" in str(report)
    second.ledger["cuda:0"] = replace(
        second.ledger["cuda:0"], parts=(), missing={"context": "needs NVML"}
    )
    assert merged({"a": first, "b": second}).notes == (f"{stray} n/a: needs NVML",)


def test_a_context_on_a_device_where_nothing_was_ever_allocated_is_named():
    parts = [Part("other", "context", "context of this process", 400 << 20, "")]
    first, second = snapshot(0, KIB), snapshot(1, KIB)
    second.ledger["cuda:0"] = Ledger(
        "cuda:0", "s", "exact", 0, 0, 0, 0, 0, 400 << 20, 400 << 20, 1 << 34, parts
    )
    assert merged({"a": first, "b": second}).notes == (
        "rank 1 works on cuda:1 and has no tensor on cuda:0, yet holds memory there:"
        " 0 B reserved, its context 400.00 MiB",
    )


def lines(*levels):
    """Return the report of lines of which each takes memory up to the next level."""
    found = [
        Line(
            7 + number,
            "x = f()",
            1,
            5,
            {"cpu": LineMemory(end, end, end, 0, 0, 0, rise=end - start)},
        )
        for number, (start, end) in enumerate(pairwise((0, *levels)))
    ]
    function = FunctionLines("f", "f", "m", "train.py", 6, 1, tuple(found))
    return LineReport((function,), ())


def test_line_reports_are_compared_by_what_each_line_took():
    report = merged({"p.rank0.json": lines(10, 15, 20), "p.rank1.json": lines(10, 45, 50)})
    assert (report.item, report.odd.difference) == ("line", 30)
    # line 9 runs at a higher level on rank 1, and takes as much on both
    assert report.odd.items == (ItemDifference("train.py:8 in f", 35, 5),)
    assert "Rank 1 compared with rank 0: what lines took above the level they" in str(report)


def test_lines_of_files_without_rises_are_compared_by_peak():
    reports = {}
    for rank, peak in enumerate((10, 40)):
        line = Line(7, "x = f()", 1, 5, {"cpu": LineMemory(peak, peak, peak, 0, 0, 0)})
        function = FunctionLines("f", "f", "m", "train.py", 6, 1, (line,))
        reports[f"p.rank{rank}.json"] = LineReport((function,), ())
    assert merged(reports).odd.items == (ItemDifference("train.py:7 in f", 40, 10),)


def leaks(*kept):
    """Return the report of lines that leave so many bytes behind in each step."""
    found = tuple(
        Leak(SourceLine(str(Path.cwd() / "train.py"), 7 + number, "step"), 1, nbytes, "kept",
             (), "other", "cpu", None, "certain", "")
        for number, nbytes in enumerate(kept)
    )  # fmt: skip
    return LeakReport(found, (), 6, 0, {"cpu": ()}, "")


def test_leak_reports_are_compared_by_what_stays_behind_each_step():
    report = merged({f"leaks.rank{rank}.json": leaks(*([KIB] * rank)) for rank in (0, 1)})
    assert [dict(each.figures) for each in report.ranks] == [
        {"bytes per step": 0},
        {"bytes per step": KIB},
    ]
    assert report.odd.rank == 1
    assert report.odd.items == (ItemDifference("train.py:7 in step, held by kept", KIB, 0),)


def test_a_leak_on_the_host_of_a_rank_with_an_accelerator_is_compared():
    devices = {"cpu": (), "cuda:0": ()}
    reports = [replace(leaks(*([1 << 20] * rank)), allocated=devices) for rank in (0, 1)]
    job = merged({f"leaks.rank{rank}.json": each for rank, each in enumerate(reports)})
    assert (job.odd.rank, job.odd.difference) == (1, 1 << 20)
    # a rank that leaks nothing is told by its accelerator
    assert [each.device for each in job.ranks] == ["cuda:0", "cpu"]


def test_records_that_cannot_be_compared_are_refused():
    with pytest.raises(UsageError, match="both of rank 1"):
        job_report([a_rank(1, 5), a_rank(1, 6)])
    with pytest.raises(UsageError, match="rank is not known"):
        merged({"a.json": lines(3)})
    with pytest.raises(UsageError, match="one kind"):
        merged({"rank0.json": lines(3), "rank1.json": snapshot(1, 4)})
    with pytest.raises(UsageError, match="no bytes"):
        merged({"rank0.json": LineReport((), ())})


def test_differences_that_are_not_listed_are_summed():
    items = {f"t{number:02}": 100 - number for number in range(25)}
    report = job_report([a_rank(0, 0), a_rank(1, sum(items.values()), **items)])
    assert len(report.odd.items) == 20
    # 80, 79, 78, 77 and 76 bytes are left out
    assert (report.odd.rest, report.odd.rest_count) == (390, 5)
    assert "5 more tensors, +390 B" in str(report)


def test_equal_layers_are_one_row_with_the_line_that_made_them():
    layers = {f"h.{number}.mlp: aten::mul": 10 for number in range(4)}
    lines = dict.fromkeys(layers, "model.py:7")
    reports = [a_rank(0, 5, x=5), a_rank(1, 50, x=10, **layers)]
    report = job_report([reports[0], replace(reports[1], lines=lines)])
    assert report.odd.items == (
        ItemDifference("h[0-3].mlp: aten::mul", 40, 0, 4, "model.py:7"),
        ItemDifference("x", 10, 5),
    )
    row = "     +40 B    40 B     0 B  h[0-3].mlp: aten::mul x 4  model.py:7\n"
    assert row in str(report)


def test_no_records_are_refused():
    with pytest.raises(UsageError, match="no records"):
        merged({})


def test_a_figure_that_one_rank_lacks_does_not_make_it_odd():
    reports = [a_rank(0, 10), a_rank(1, 10)]
    other = RankReport(2, None, "c", "recording", "tensor", "cpu", {"named": 9}, {}, {})
    assert job_report([*reports, other]).odd is None
