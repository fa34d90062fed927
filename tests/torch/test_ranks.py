"""Ranks of a job under torchrun, gathered inside it and merged from their files."""

import subprocess
from pathlib import Path

import pytest
import torch

import tensorlens
from tensorlens.cli import main
from tensorlens.errors import UsageError
from tensorlens.jobs import merged
from tests import warm

PROGRAM = Path(__file__).with_name("ranks_program.py")
ROOT = PROGRAM.parents[2]
RANKS = 3
WEIGHT = 240 * 240 * 4
KEPT = 25_000 * 4


KINDS = ("ddp", "fsdp", "tensor parallel", "killed")
"""One after the other, each in a folder of its own; in the last one a rank is killed."""


@pytest.fixture(scope="module")
def job(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    for kind in KINDS:
        (folder / kind).mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(ROOT))
        python = warm.python()
        launcher = (*python, "-m", "torch.distributed.run", "--standalone", "--no-python")
        done = subprocess.run(
            [*launcher, f"--nproc-per-node={RANKS}", *python, str(PROGRAM), str(folder), *KINDS],
            capture_output=True,
            timeout=300,
            check=False,
        )
    assert done.returncode != 0
    assert "Signal 9 (SIGKILL)" in done.stderr.decode(), done.stderr.decode()
    return folder


def sizes(folder: Path, rank: int, role: str) -> dict[str, int]:
    table = tensorlens.load(folder / f"run.rank{rank}.json").tensors
    of_role = (each for each in table if each.role == role)
    # a mesh's tensor of ranks may be found by the model or by the optimizer
    return {each.name: each.storage_nbytes for each in of_role if each.storage_nbytes > 4 * RANKS}


@pytest.mark.parametrize("kind", KINDS[:-1])
def test_each_rank_has_global_names_and_local_bytes(kind, job):
    folder = job / kind
    shard = WEIGHT if kind == "ddp" else WEIGHT // RANKS
    for rank in range(RANKS):
        found = sizes(folder, rank, "parameter")
        assert {name[-len("0.weight") :]: nbytes for name, nbytes in found.items()} == {
            "0.weight": shard,
            "1.weight": shard,
        }
        assert sorted(sizes(folder, rank, "optimizer").values()) == [shard, shard]

    report = tensorlens.load(folder / "gathered.json")
    assert [each.rank for each in report.ranks] == [*range(RANKS)]
    assert (report.world_size, report.missing) == (RANKS, ())
    assert (report.odd.rank, report.odd.difference) == (1, KEPT)
    # whoever is found to hold a mesh's tensor may differ among ranks
    (item,) = [each for each in report.odd.items if abs(each.difference) > 4 * RANKS]
    assert (item.nbytes, item.other_nbytes) == (KEPT, 0)
    files = {str(each): tensorlens.load(each) for each in folder.glob("run.rank*.json")}
    assert merged(files).odd == report.odd


def test_a_rank_that_was_killed_is_missing(job, capsys):
    folder = job / "killed"
    # what it had written is whole
    names = [str(folder / f"run.rank{rank}.json") for rank in range(RANKS)]
    assert main(["merge", "--ranks", *names]) == 0
    said = "rank 1 stands out, its allocated is 97.66 KiB more than the median"
    assert said in capsys.readouterr().out
    del names[1]
    assert main(["merge", "--ranks", *names]) == 0
    assert "There is no record of rank 1" in capsys.readouterr().out
    assert not [each for each in folder.iterdir() if each.suffix == ".tmp"]


def test_a_recording_that_is_still_at_hand_is_gathered_too():
    with tensorlens.record() as recording:
        kept = torch.zeros(1000)
    report = tensorlens.gather(recording)
    assert report.ranks[0].figures["peak"] >= kept.nbytes
    with pytest.raises(UsageError, match="not compared by a int"):
        tensorlens.gather(3)
