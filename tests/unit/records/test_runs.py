"""The run that a record is of is kept in its file, and never taken for that of the reader."""

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tensorlens import LineReport, Recording, Snapshot, load
from tensorlens.records import ALLOC, EventLog, Origin, Run, TensorTable, current_run
from tensorlens.render import html_page
from tensorlens.tensors import difference

RUN = Run(
    command="python <train>.py --lr 0.1",
    started=0.0,
    seconds=90.5,
    host="node7",
    python="3.12.1",
    system="Linux x86_64",
    tensorlens="0.1.0",
    versions={"torch": "2.13.0"},
    devices=("NVIDIA H100", "NVIDIA H100"),
)


def recording() -> Recording:
    log = EventLog()
    log.append(ALLOC, "cpu", 1, 100, 0, -1, None)
    return Recording(log, Origin(run=RUN))


SNAPSHOT = Snapshot(TensorTable(), {}, run=RUN)
RECORDS = {
    "lines.json": LineReport((), (), run=RUN),
    "snapshot.json": SNAPSHOT,
    "difference.json": replace(difference.difference(SNAPSHOT, SNAPSHOT), run=RUN),
    "recording.json": recording(),
    "recording.tlens": recording(),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_file_keeps_the_run(tmp_path: Path, name: str) -> None:
    RECORDS[name].save(tmp_path / name)
    assert load(tmp_path / name).run == RUN


@pytest.mark.parametrize("name", ["lines.json", "snapshot.json", "difference.json"])
def test_a_file_without_it_is_of_no_known_run(tmp_path: Path, name: str) -> None:
    data = RECORDS[name].to_dict()
    del data["run"]
    (tmp_path / name).write_text(json.dumps(data))
    assert load(tmp_path / name).run is None


def test_a_record_made_from_others_has_their_frameworks() -> None:
    found = difference.difference(SNAPSHOT, SNAPSHOT).run
    assert found is not None and found.command != RUN.command
    assert found.versions["torch"] == "2.13.0" and found.devices == ("NVIDIA H100",)


def test_run_texts() -> None:
    assert RUN.texts == (
        "python <train>.py --lr 0.1",
        "started 1970-01-01 00:00:00 UTC, made after 90.5 s",
        "node7, Linux x86_64",
        "Python 3.12.1, torch 2.13.0",
        "NVIDIA H100",
        "tensorlens 0.1.0",
    )


def test_a_page_ends_with_it() -> None:
    page = html_page(RECORDS["lines.json"])
    footer = page.partition("<footer>")[2]
    assert "python &lt;train&gt;.py --lr 0.1" in footer
    assert "<footer>" not in html_page(LineReport((), (), run=None))


def test_run_of_this_process() -> None:
    code = "from tensorlens.records import current_run; import json, dataclasses;"
    code += "print(json.dumps(dataclasses.asdict(current_run())))"
    before = time.time()
    found = subprocess.run(
        [sys.executable, "-c", code, "a b"], capture_output=True, text=True, check=True
    )
    run = json.loads(found.stdout)
    assert run["command"].endswith("'a b'") and run["command"].startswith(sys.executable)
    # the kernel tells the start to a hundredth of a second
    assert before - 1 < run["started"] <= time.time()
    assert run["host"] == os.uname().nodename
    assert run["versions"] == {} and run["devices"] == []


def test_unknown_run_facts_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.node", lambda: 1 / 0)
    assert current_run() is None
