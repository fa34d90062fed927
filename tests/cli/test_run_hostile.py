"""Full disks, ranks of a job, signals that end the program, terminals that show little."""

import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from commands import environment, own_lines

from tensorlens import load
from tensorlens.ranks import current_rank
from tests import warm

STEP = """
import tensorlens
@tensorlens.profile
def step(size):
    return len(bytearray(size))
for size in (10, 20, 30):
    step(size)
"""
TRAIN = "import torch\n" + STEP.replace("len(bytearray(size))", "torch.ones(size).numel()")
WAIT = "import os, time\nprint('ready', flush=True)\n[time.sleep(0.01) for _ in range(60000)]\n"


def start(folder, *words, code=STEP, **options):
    (folder / "step.py").write_text(code)
    changes = options.pop("changes", {})
    # what is set before a program starts, a fork would not have
    interpreter = [sys.executable] if "preexec_fn" in options else warm.python(bare=code == STEP)
    return subprocess.Popen(
        [*interpreter, "-m", "tensorlens", *words],
        cwd=folder,
        stdout=options.pop("stdout", subprocess.PIPE),
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        # what there is no room for is bytecode, too, which Python would leave behind in part
        env=environment(PYTHONDONTWRITEBYTECODE="1", **changes),
        **options,
    )


def finish(process):
    out, err = process.communicate(timeout=120)
    return process.returncode, out or "", err


def no_room():
    # as a full disk does, it fails in the middle of a write
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))


@pytest.mark.parametrize("ending", ["json", "html"])
def test_full_disk_prints_the_figures_and_leaves_no_part_of_a_file(tmp_path, ending):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    words = ("run", "-o", f"out.{ending}", "step.py")
    process = start(tmp_path, *words, preexec_fn=no_room, changes={"TMPDIR": str(scratch)})
    code, out, err = finish(process)
    assert code == 0
    assert "3 calls" in out
    (line,) = own_lines(err)
    assert line.endswith("out." + ending + ": File too large; the figures are printed instead")
    assert list(scratch.iterdir()) == []
    assert {each.name for each in tmp_path.iterdir()} <= {"step.py", "scratch", "__pycache__"}


def test_full_disk_prints_a_recording(tmp_path):
    words = ("run", "--record", "out.tlens", "step.py")
    limit = "import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, (50, 50))\n"
    code, out, err = finish(start(tmp_path, *words, code=limit + TRAIN))
    assert code == 0
    assert "Memory over time" in out and "3 calls" in out
    assert "File too large; the figures are printed instead" in own_lines(err)[-1]
    assert not list(tmp_path.glob("*tlens*"))


def test_recording_whose_folder_went_is_kept_among_temporary_files(tmp_path):
    (tmp_path / "away").mkdir()
    (tmp_path / "scratch").mkdir()
    words = ("run", "--record", "away/out.tlens.gz", "step.py")
    gone = f"{TRAIN}\nimport os\nos.rmdir('away')\n"
    changes = {"TMPDIR": str(tmp_path / "scratch")}
    code, out, err = finish(start(tmp_path, *words, code=gone, changes=changes))
    assert code == 0 and "Memory over time" in out
    (copy,) = (tmp_path / "scratch").glob("out.*.tlens.gz")
    assert own_lines(err)[-1].endswith(f"the figures are printed instead, and are in {copy}")
    assert load(copy).peak("cpu").bytes


@pytest.mark.parametrize("name", ["SIGTERM", "SIGUSR1"])
def test_signal_that_ends_the_program_ends_it_with_its_file(tmp_path, name):
    number = getattr(signal, name)
    words = ("run", "-o", "out.json", "step.py")
    # a shell lets what it runs in the background ignore some
    process = start(
        tmp_path,
        *words,
        code=STEP + WAIT,
        preexec_fn=lambda: signal.signal(number, signal.SIG_DFL),
    )
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == -number
    assert load(tmp_path / "out.json").functions[0].calls == 3
    assert len(own_lines(err)) == 1


OWN = "import signal\nsignal.signal(signal.{name}, lambda *given: print('own', flush=True))\n"
TAKEN = {
    "python": OWN,
    "faulthandler": "import faulthandler, signal\nfaulthandler.register(signal.{name})\n",
    "ignored": "import signal\nsignal.signal(signal.{name}, signal.SIG_IGN)\n",
}


@pytest.mark.parametrize(
    ("name", "how"), [("SIGHUP", "python"), ("SIGUSR1", "faulthandler"), ("SIGHUP", "ignored")]
)
def test_handler_of_the_program_stays(tmp_path, name, how):
    sent = f"os.kill(os.getpid(), signal.{name})\nprint('goes on')\n"
    # set before the first decorator is there, which looks for handlers
    code = TAKEN[how].format(name=name) + "import os\n" + STEP + sent
    (tmp_path / "step.py").write_text(code)
    done = subprocess.run(
        [*warm.python(bare=True), "step.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        encoding="utf-8",
        env=environment(),
        timeout=120,
    )
    assert done.returncode == 0
    assert "goes on" in done.stdout and "3 calls" in done.stdout
    assert ("own" in done.stdout) == (how == "python")


def test_signals_that_schedulers_send_are_left_to_the_program_under_slurm(tmp_path):
    free = "import signal\nprint(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)\n"
    for job, expected in (({"SLURM_JOB_ID": "7"}, "True\n"), ({}, "False\n")):
        words = ("run", "-o", "out.json", "-f", "step.py")
        assert finish(start(tmp_path, *words, code=STEP + free, changes=job))[1] == expected


def test_each_rank_writes_files_of_its_own(tmp_path):
    ranks = []
    for rank in range(2):
        words = ("run", "-o", "out.json", "--record", "out.tlens.gz", "step.py")
        job = {"RANK": str(rank), "WORLD_SIZE": "2"}
        ranks.append(start(tmp_path, *words, code=TRAIN, changes=job))
    for rank, process in enumerate(ranks):
        code, _, err = finish(process)
        (lines,) = tmp_path.glob(f"out.rank{rank}.*.json")
        recording = lines.with_suffix(".tlens.gz")
        assert code == 0
        assert [f"wrote {each.name}" in err for each in (lines, recording)] == [True, True]
        assert load(lines).process == load(recording).origin.process == f"rank {rank} of 2"
    assert len(list(tmp_path.glob("out.*"))) == 4


LAUNCHERS = [
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
]


@pytest.mark.parametrize(("rank", "size"), LAUNCHERS)
def test_rank_is_what_the_launcher_says(rank, size):
    assert str(current_rank({rank: "1", size: "4"})) == "rank 1 of 4"


def test_tables_are_headed_by_rank(tmp_path):
    job = {"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "4", "TENSORLENS_RANKS": "all"}
    code, out, _ = finish(start(tmp_path, "run", "step.py", changes=job))
    assert code == 0
    assert out.splitlines()[0] == "Memory per line, rank 1 of 4"


def test_the_first_rank_alone_prints(tmp_path):
    words = ("run", "step.py")
    ranks = [
        start(tmp_path, *words, changes={"RANK": str(rank), "WORLD_SIZE": "2"}) for rank in (0, 1)
    ]
    (code, first, _), second = map(finish, ranks)
    assert code == 0 and first.splitlines()[0] == "Memory per line, rank 0 of 2"
    assert second == (0, "", "")


def test_forked_workers_of_a_rank_write_files_of_their_own(tmp_path):
    forks = f"{STEP}\nimport os\nchild = os.fork()\nstep(5)\nchild and os.waitpid(child, 0)\n"
    process = start(
        tmp_path,
        *("run", "-o", "out.json", "step.py"),
        code=forks,
        changes={"RANK": "0", "WORLD_SIZE": "2"},
    )
    code, _, _ = finish(process)
    files = {each.name: load(each) for each in tmp_path.glob("out.*")}
    assert code == 0 and len(files) == 2
    assert all(name.startswith("out.rank0.") for name in files)
    assert sorted(each.functions[0].calls for each in files.values()) == [1, 4]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    words = ("run", "-o", "saved.json", "--record", "saved.tlens", "step.py")
    writes = "open('snapshot.json', 'w').write(tensorlens.MemReporter().snapshot().to_json())"
    assert finish(start(folder, *words, code=f"{TRAIN}\n{writes}\n"))[0] == 0
    return folder


class TestStandardOutput:
    """Answers that nobody can read any more."""

    VERBS = (
        ("show", "saved.json"),
        ("plan", "8x8x3"),
        ("show", "saved.tlens"),
        ("diff", "snapshot.json", "snapshot.json"),
    )

    @pytest.mark.parametrize("words", VERBS, ids=" ".join)
    def test_full_disk_is_one_line(self, saved, words):
        with Path("/dev/full").open("w") as full:
            code, _, err = finish(start(saved, *words, stdout=full))
        assert code == 1
        assert err.splitlines() == [
            "tensorlens: error: cannot write to standard output: No space left on device"
        ]

    @pytest.mark.parametrize("words", VERBS, ids=" ".join)
    def test_encoding_without_our_signs_and_no_locale(self, saved, words):
        changes = {"PYTHONIOENCODING": "ascii", "LC_ALL": "C", "LANG": "C", "PYTHONUTF8": "0"}
        code, out, err = finish(start(saved, *words, changes=changes))
        assert (code, err) == (0, "") and out.isascii()

    def test_closed_standard_output(self, saved):
        def close():
            os.close(1)

        words = ("show", "saved.json")
        code, _, err = finish(start(saved, *words, stdout=None, preexec_fn=close))
        assert (code, err) == (0, "")
