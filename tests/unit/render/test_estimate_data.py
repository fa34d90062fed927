import csv
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest
import rendered_estimates as estimates
from rendered_estimates import GIB, MIB, PEAK

from tensorlens import Estimate, Recording, load
from tensorlens.errors import FileFormatError
from tensorlens.render import ENDINGS, RECORDING_ENDINGS, csv_text, file_content, to_pandas


def data_of(kind: str) -> dict:
    return json.loads(file_content(estimates.ALL[kind](), "json"))


@pytest.mark.parametrize("kind", estimates.ALL)
def test_every_estimate_is_json(kind: str) -> None:
    data = data_of(kind)
    assert (data["schema"], data["version"]) == ("tensorlens.estimate", 1)
    peak = data["allocated"]["point"]
    for sums in ("by_line", "by_module", "parts"):
        told = sum(each["nbytes"] for each in data[sums])
        assert told == sum(data["by_role"].values()) == peak


def test_an_estimate_that_was_looked_at_is_pickled() -> None:
    estimate = estimates.ALL["training"]()
    assert str(estimate)
    again = pickle.loads(pickle.dumps(estimate))
    assert str(again) == str(estimate)
    assert again.to_dict() == estimate.to_dict()


def test_the_figures_are_exact() -> None:
    data = data_of("training")
    assert data["allocated"] == {"low": PEAK, "point": PEAK, "high": PEAK}
    assert data["needed"] == {"low": 334 * MIB, "point": 446 * MIB, "high": 588 * MIB}
    assert data["fits"] == {"capacity": GIB, "verdict": "fits"}
    # without the context: 40 reserved less a tenth, at most 42, a fifth more and 50 of kernels
    assert (data["lower"], data["upper"]) == (36 * MIB, 42 * MIB * 6 // 5 + 50 * MIB)
    assert data["steps"][2] == {
        **{"name": "step 2", "peak_allocated": PEAK, "peak_reserved": 40 * MIB},
        **{"allocated": 25 * MIB, "reserved": 40 * MIB},
    }
    assert data["card"]["capability"] == [9, 0]


def test_the_peak_has_its_place_and_its_blocks() -> None:
    peak = data_of("training")["peak"]
    assert (peak["row"], peak["step"], peak["phase"]) == (14, "step 2", "backward")
    assert peak["line"] == {"filename": "train.py", "lineno": 2, "function": "step"}
    assert (peak["module"], peak["op"]) == ("fc1", "aten::mm")
    assert (peak["bytes"], peak["held"]) == (33 * MIB, PEAK)
    assert [block["nbytes"] for block in peak["tensors"][:2]] == [8 * MIB, 4 * MIB]


def test_the_sum_goes_up_to_what_the_card_must_have() -> None:
    rungs = data_of("training")["sum"]
    assert [each["nbytes"] for each in rungs if each["sign"] == "="] == [
        *(PEAK, 40 * MIB, 36 * MIB, 446 * MIB)
    ]


@pytest.mark.parametrize("kind", estimates.ALL)
def test_csv_has_a_row_a_figure(kind: str) -> None:
    rows = list(csv.DictReader(io.StringIO(csv_text(estimates.ALL[kind]()))))
    peak = next(row["point"] for row in rows if row["name"] == "allocated")
    for each in ("role", "line", "module"):
        assert sum(int(row["point"]) for row in rows if row["kind"] == each) == int(peak)


def test_estimate_csv_cells() -> None:
    rows = list(csv.reader(io.StringIO(csv_text(estimates.training()))))
    needed = [str(each * MIB) for each in (334, 446, 588)]
    assert ["figure", "needed", *needed, "", "", "", ""] in rows
    step = [str(PEAK)] * 3
    assert ["peak allocated", "step 2", *step, "", "", "", ""] in rows
    line = [str(10 * MIB)] * 3
    assert ["line", "", *line, "train.py", "2", "step", ""] in rows


def test_a_data_frame() -> None:
    pytest.importorskip("pandas")
    frame = to_pandas(estimates.training())
    assert frame[frame["kind"] == "role"]["point"].sum() == PEAK


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_ending_is_written(tmp_path: Path, ending: str) -> None:
    assert estimates.training().save(tmp_path / f"out.{ending}").stat().st_size


@pytest.mark.parametrize("ending", RECORDING_ENDINGS)
def test_endings_of_recordings_keep_its_recording(tmp_path: Path, ending: str) -> None:
    made = estimates.training()
    path = made.save(tmp_path / f"out.{ending}")
    made.recording.save(tmp_path / f"same.{ending}")
    assert path.read_bytes() == (tmp_path / f"same.{ending}").read_bytes()


@pytest.mark.parametrize("kind", estimates.ALL)
def test_estimate_json_round_trip(tmp_path: Path, kind: str) -> None:
    made = estimates.ALL[kind]()
    assert isinstance(load(made.save(tmp_path / "out.tlens")), Recording)
    again = load(made.save(tmp_path / "out.json"))
    assert isinstance(again, Estimate)
    assert str(again) == str(made) and again.explain() == made.explain()
    assert again.to_dict() == made.to_dict()
    assert str(again.fits) == str(made.fits) and again.upper == made.upper


@pytest.mark.parametrize(
    ("spoilt", "reason"),
    [
        ({"log": None}, "damaged recording: its events are no base64"),
        ({"version": 2}, "estimate of version 2; this tensorlens reads 1"),
    ],
)
def test_damaged_estimate_is_one_line(spoilt: dict[str, Any], reason: str) -> None:
    with pytest.raises(FileFormatError) as raised:
        Estimate.from_dict({**estimates.training().to_dict(), **spoilt})
    assert str(raised.value) == reason


def test_fits_answers_for_the_card_where_no_capacity_was_asked():
    estimate = estimates.unasked()
    assert estimate.capacity is None and estimate.card is not None
    assert estimate.fits
    assert estimate.fits().capacity == estimate.card.memory
    assert not estimate.fits("1 MiB")
