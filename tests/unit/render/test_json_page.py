"""docs/json.md names every field of every JSON document, with its type, and no other."""

import json
import re
import textwrap
from collections.abc import Iterator
from dataclasses import replace

import rendered_estimates as estimates
import rendered_leaks as leaks
import rendered_recordings as recordings
import rendered_reports as reports
import rendered_snapshots as snapshots

import tensorlens
from tensorlens import Comparison, LineReport, Queue, Recording, Suggestions
from tensorlens.jobs import RankReport, job_report
from tensorlens.lines import Ending, FunctionLines, Line, LineMemory, ResidentLine
from tensorlens.planning import Formula
from tensorlens.planning.compare import Outcome
from tensorlens.planning.estimate import LargestBatch
from tensorlens.planning.suggest import Suggestion
from tensorlens.records import (
    ALLOC,
    Document,
    EventLog,
    Frame,
    ObjectContainer,
    QueuePart,
    QueueWorker,
    SourceLine,
)
from tests.json_page import PAGE, Checker


def records() -> Iterator[Document]:
    """Records that have every field somewhere."""
    for kinds in (reports, snapshots, recordings, leaks):
        yield from (make() for make in kinds.KINDS.values())
    yield from snapshots.changes().values()
    yield graph()
    yield model_line()
    yield from (make() for make in estimates.ALL.values())
    largest, formula = LargestBatch(8, 100, 9, 110), Formula("weights", 10, "no activations")
    yield replace(estimates.training(), largest=largest, formulas=(formula,))
    yield Comparison((Outcome("base", losses=(1.0, None)),), "base", "cpu", "measured")
    yield Suggestions((Suggestion("bf16", "", "", "", 1, 2),), "cpu", 3, "in backward")
    yield tensorlens.inputs.plan((3, 8, 8), "uint8", 4)
    yield Queue(
        *("queue", "torch", 1, 2, 3, 4, 5),
        (QueuePart("results", "shared memory", 1, "batch", 2, 3, 4, "a rule"),),
        *("a rule", (QueueWorker(7, "running", 1, 2, 3, 4),)),
        (ObjectContainer("dataset.samples", "list", 3, "str", 180, True),),
    )
    figures = ("recording", "tensor", "cpu")
    yield job_report(
        [
            RankReport(rank, 2, f"rank{rank}", *figures, {"peak": peak}, {"a": peak}, {"a": "a:1"})
            for rank, peak in enumerate((10, 30))
        ]
    )


def model_line() -> Recording:
    log = EventLog()
    user = log.stacks.push(-1, Frame("train.py", 3, "step"))
    model = Frame("/env/site-packages/timm/vit.py", 8, "Vit.forward", user=False)
    log.append(ALLOC, "cpu", 1, 512, 0, log.stacks.push(user, model))
    return Recording(log)


def graph() -> LineReport:
    kept = (ResidentLine("m.py", 1, "step", 9),)
    memory = LineMemory(1, 2, None, 3, 4, 5, backward=6, rise=7, growth=8, residents=kept)
    line = Line(2, "y = x + x", 1, 5, {"cpu": memory})
    function = FunctionLines(
        *("step", "step", "m", "m.py", 1, 3, (line,)), execution="graph", whole={"cpu": memory}
    )
    ending = Ending("SIGTERM", SourceLine("m.py", 2, "step"))
    return replace(reports.report(function), ending=ending)


def test_the_page_has_every_field_of_every_record_and_no_other() -> None:
    checker = Checker()
    for record in records():
        checker.check(json.loads(record.to_json()))
    # those of the command line are checked where it is run
    of_verbs = {
        *("tensorlens.doctor", "Finding", "tensorlens.live", "JobLevels", "DeviceLevel"),
        *("LineTotals", "LineTotal", "TensorTotals", "RoleTotal", "TensorTotal"),
    }
    assert sorted(each for each in checker.unseen() if each[0] not in of_verbs) == []


def test_names_are_put_together_as_the_page_says() -> None:
    (code,) = re.findall(r"```python\n(def name.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    made: dict = {}
    exec(textwrap.dedent(code), made)
    for make in snapshots.KINDS.values():
        snapshot = make()
        tensors = json.loads(snapshot.to_json())["tensors"]
        names = [made["name"](tensors["names"], node) for node in tensors["name"]]
        assert names == [each.name for each in snapshot.tensors]
