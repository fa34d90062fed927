"""``suggest()`` of a recording alone, in a process that holds nothing else."""

import pytest

import tensorlens
from tensorlens.cli import main
from tensorlens.errors import UsageError
from tensorlens.planning.suggest import api
from tests.torch import suggest_programs as programs

A, P, N = programs.OUTPUT_BYTES, programs.PARAMETER_BYTES, programs.PARAMETERS


def test_a_recording_alone(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(api, "_MIN_SAVING_FRACTION", 0)
    with tensorlens.record() as recording:
        step = programs.make_stack()
        for _ in range(3):
            step()
    found = tensorlens.suggest(recording, top=9)
    assert found["optimizer"].predicted_saving == 2 * P + 4 * N
    saved = (N - (programs.BLOCKS - 1) - programs.LAYERS) * A
    assert found["checkpoint"].predicted_saving == pytest.approx(saved, rel=0.05)
    assert {each.how for each in found} == {"replayed"}
    with pytest.raises(UsageError, match="give make_step"):
        tensorlens.suggest(recording, verify=True)
    recording.save(tmp_path / "steps.tlens")
    assert main(["suggest", str(tmp_path / "steps.tlens"), "--top", "1"]) == 0
    shown = capsys.readouterr().out
    assert f"checkpoint {programs.BLOCKS} blocks" in shown and "less than these: SGD" in shown
