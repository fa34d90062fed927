"""Suggestions as records: read back equal, and shown."""

from dataclasses import replace

import pytest

from tensorlens import Suggestions
from tensorlens.errors import UsageError
from tensorlens.loading import parse
from tensorlens.planning.suggest import Method, Suggestion, verified
from tensorlens.render import TextRenderer, html_page

MIB = 1 << 20
CHECKPOINT = Suggestion(
    kind="checkpoint",
    change="checkpoint 4 blocks",
    what="4 x Block in net.layers",
    code="for block in net.layers: ...",
    predicted_peak=60 * MIB,
    predicted_saving=40 * MIB,
    cost="their forward runs twice: about +30 % time",
    settings=("checkpoint=blocks",),
)
BF16 = Suggestion(
    "bf16",
    "bf16",
    "",
    "autocast",
    70 * MIB,
    30 * MIB,
    Method.SIMULATED,
    settings=("autocast=bf16",),
)
KEPT = Suggestion("kept", "release <b>", "a variable", "del <b>", 90 * MIB, 10 * MIB)
QUEUE = Suggestion(
    *("queue", "a smaller queue", "8.00 MiB held ahead", "DataLoader(...)", 2 * MIB, 6 * MIB),
    how=Method.COUNTED,
    memory="shared memory",
    before=8 * MIB,
)


def made(*suggestions, **more):
    found = Suggestions(suggestions, "cpu", 100 * MIB, "in backward, step 2", "train:f", **more)
    assert parse(found.to_json()) == found
    return found


def test_predicted_suggestions():
    found = made(CHECKPOINT, BF16, KEPT, others=("SGD (4.0 %)",))
    text = TextRenderer(width=80).render(found)
    assert all(len(line) <= 80 for line in text.splitlines())
    row = next(line for line in text.splitlines() if line.startswith("  1  checkpoint"))
    assert row.split()[4:] == "40.00 MiB 40.0 % 60.00 MiB time replayed".split()
    assert "  free changes: release <b>, saves 10.00 MiB\n" in text
    row = next(line for line in text.splitlines() if line.startswith("  3  release <b>"))
    assert row.split()[3:] == "10.00 MiB 10.0 % 90.00 MiB free replayed".split()
    assert "less than these: SGD (4.0 %)" in text and "simulated: " in text
    assert [each.kind for each in found] == ["checkpoint", "bf16", "kept"]
    assert found["kept"].option is None and found[0].option == {"checkpoint": "blocks"}
    with pytest.raises(UsageError, match="there is checkpoint, bf16, kept"):
        found["optimizer"]


def test_line_and_tensor_of_the_peak_come_first():
    found = made(CHECKPOINT, line="f.py:3, 9.00 MiB (9.0 %)", tensor="net.w, 8.00 MiB (8.0 %)")
    assert str(found).splitlines()[2:4] == [
        "  line f.py:3, 9.00 MiB (9.0 %)",
        "  tensor net.w, 8.00 MiB (8.0 %)",
    ]


def test_measured_suggestions():
    fields = {"measured_peak": 62 * MIB, "measured_saving": 38 * MIB, "measured_time": 1.25}
    fields["measured_noise"] = 0.04
    found = made(
        replace(CHECKPOINT, **fields),
        replace(KEPT, missing="only your code"),
        verified=True,
        measured_peak=100 * MIB,
    )
    text = TextRenderer(width=90).render(found)
    row = next(line for line in text.splitlines() if line.startswith("  1  checkpoint"))
    assert row.split()[4:] == "40.00 MiB 38.00 MiB +5.3 % 62.00 MiB time x1.25 ±0.04".split()
    (row,) = [line for line in text.splitlines() if line.startswith("  2  release <b>")]
    assert row.split()[3:] == "10.00 MiB unmeasured n/a 90.00 MiB free n/a".split()
    assert "   a variable\n   not measured: only your code\n" in text
    beside = made(replace(CHECKPOINT, **fields), QUEUE, verified=True, measured_peak=100 * MIB)
    text = TextRenderer(width=100).render(beside)
    (row,) = [line for line in text.splitlines() if line.startswith("  2  a smaller queue")]
    assert row.split()[4:] == "6.00 MiB n/a n/a queue 2.00 MiB waiting n/a".split()
    once = made(
        replace(CHECKPOINT, **fields | {"measured_time": None, "measured_noise": None}),
        verified=True,
    )
    assert "time: n/a, timing noise unknown after one run; use repeats=3 (--repeats 3)" in str(once)
    assert found["checkpoint"].off == pytest.approx(40 / 38 - 1)


def test_suggestion_without_option_is_not_measured():
    other = replace(CHECKPOINT, change="SGD without momentum", settings=())
    found = verified(made(KEPT, other), "not run")
    assert [each.missing for each in found] == [
        "whether your code still needs it, no option can know",
        "compare() has no setting that does it",
    ]
    assert found.verified and "not measured: whether your code" in str(found)


def test_pages_and_tables():
    found = made(CHECKPOINT, KEPT, QUEUE)
    page = html_page(found)
    assert "release &lt;b&gt;" in page and "<b>release <b>" not in page
    assert "width: 60.0%" in page and "width: 90.0%" in page
    # what is beside the peak leaves it as it is
    assert page.count('<i class="tl-best"') == 2 and ">queue</td>" in page
    assert "Peak with each change" not in html_page(made(QUEUE))
    header, first, _, last = found.to_csv().splitlines()
    assert dict(zip(header.split(","), first.split(","), strict=False))["kind"] == "checkpoint"
    assert f",peak,{100 * MIB},{60 * MIB},{40 * MIB},,,," in first
    assert f",shared memory,{8 * MIB},{2 * MIB},{6 * MIB},,,," in last


def test_no_suggestions():
    found = made(notes=("a note",))
    assert "nothing that was tried saves 1 %" in str(found) and "a note" in str(found)
    assert "nothing that was tried" in html_page(found)
