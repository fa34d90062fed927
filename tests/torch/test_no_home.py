"""A container: no HOME, no entry for the user, nowhere to write. Programs run as without us."""

import os
import stat
import subprocess
from pathlib import Path

import pytest

from tensorlens import folders
from tensorlens.frameworks.torch import COUNTER
from tests import warm
from tests.copied_compiler import copied_compiler

ROOT = Path(__file__).parents[2]
NOBODY = """
import pwd
def unknown(uid):
    raise KeyError(f"getpwuid(): uid not found: {uid}")
pwd.getpwuid = unknown
"""
PROGRAM = """
import torch
import tensorlens

@tensorlens.profile
def work(count):
    made = torch.zeros(count)
    return made.numel()

print(work(1000))
with tensorlens.profile:
    print(work(500))
with tensorlens.LineProfiler(work) as profiler:
    print(work(250))
with tensorlens.record() as recording:
    recording.mark("begun")
    made = torch.zeros(2000)
print(made.nbytes, recording.failure)
"""


def run(folder, code, **environment):
    (folder / "program.py").write_text(code)
    kept = {k: v for k, v in os.environ.items() if k not in ("HOME", "XDG_CACHE_HOME", "TMPDIR")}
    return subprocess.run(
        [*warm.python(), "program.py"],
        cwd=folder,
        capture_output=True,
        text=True,
        env={**kept, "PYTHONPATH": str(ROOT), **environment},
        timeout=300,
    )


def test_program_runs_without_home_and_keeps_its_parts_in_tmpdir(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # one part of those that are compiled
    counted, _, _ = PROGRAM.partition("with tensorlens.record")
    compiler = copied_compiler(COUNTER, tmp_path)
    done = run(tmp_path, NOBODY + counted, TMPDIR=str(scratch), CXX=compiler)
    assert (done.returncode, done.stderr) == (0, "")
    assert "exact bytes" in done.stdout
    (own,) = scratch.iterdir()
    assert own.name == f"tensorlens-{os.geteuid()}"
    assert stat.S_IMODE(own.stat().st_mode) == 0o700
    assert [part.suffix for part in (own / "native").iterdir()].count(".so") >= 1


COUNTING = """
from tensorlens.native import build as building
def compiled(*given):
    raise LookupError("an error that nobody thought of")
building._compile = compiled
"""


def test_failure_of_any_kind_in_the_counter_gives_coarser_figures(tmp_path):
    done = run(tmp_path, COUNTING + PROGRAM, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert done.returncode == 0
    words = " ".join(done.stdout.split())
    assert "was not built: LookupError: an error that nobody thought of" in words
    assert "8000 host memory cannot be recorded" in words
    (line,) = done.stderr.splitlines()
    assert line.startswith("tensorlens: nothing is recorded: host memory cannot be recorded")


ENTRANCES = {
    "counters": 'Adapter, "cpu_counter"',
    "engine": 'Engine, "refresh_counters"',
    "entry": 'profiler, "build_entry"',
    "recorder": 'Adapter, "record"',
    "block": 'profile, "ProfiledBlock"',
    "enabling": 'Engine, "enable_for_block"',
}
BROKEN = """
import torch
import tensorlens
from tensorlens.frameworks.torch import Adapter
from tensorlens.lines import Engine, profile, profiler
def fail(*given, **options):
    raise RuntimeError("broken")
def break_existing(owner, name):
    getattr(owner, name)
    setattr(owner, name, fail)
"""
USED = """
@tensorlens.profile
def work(count):
    return torch.zeros(count).numel()

@tensorlens.profile
def numbers():
    yield from range(3)

assert work(1000) == 1000
assert list(numbers()) == [0, 1, 2]
def plain(count):
    return torch.zeros(count).numel()

with tensorlens.LineProfiler(plain):
    assert plain(3) == 3
with tensorlens.profile:
    assert work(500) == 500
with tensorlens.record() as recording:
    recording.mark("begun")
    assert work(250) == 250
stop = tensorlens.explain_oom()
stop()
print("program done")
"""


@pytest.mark.parametrize("entrance", ENTRANCES)
def test_no_failure_inside_reaches_the_program(tmp_path, entrance):
    done = run(tmp_path, f"{BROKEN}break_existing({ENTRANCES[entrance]})\n{USED}")
    assert done.returncode == 0, done.stderr
    assert "program done" in done.stdout
    assert "Traceback" not in done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(set(lines))
    assert all(line.startswith("tensorlens: ") and "RuntimeError: broken" in line for line in lines)
    assert lines or "could not be measured: RuntimeError: broken" in done.stdout


def test_bad_arguments_are_refused_without_home(tmp_path):
    for use in ("tensorlens.profile(3)", "tensorlens.profile(every=0)"):
        done = run(tmp_path, f"import tensorlens\n{use}")
        assert done.returncode == 1
        assert "tensorlens.errors." in done.stderr.splitlines()[-1]


class TestCacheFolder:
    """Which folder keeps what is built."""

    @pytest.fixture(autouse=True)
    def nothing_set(self, monkeypatch, tmp_path):
        self.home, self.scratch = tmp_path / "home", tmp_path / "scratch"
        self.home.mkdir()
        self.scratch.mkdir()
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
        monkeypatch.setattr("tempfile.tempdir", str(self.scratch))
        self.in_scratch = self.scratch / f"tensorlens-{os.geteuid()}" / "native"

    def refuse(self, monkeypatch, *refused):
        """Make folders read-only, also for root."""
        access = os.access

        def asked(path, mode):
            return not Path(path).is_relative_to(*refused) and access(path, mode)

        monkeypatch.setattr(os, "access", asked)

    def test_link_to_itself(self):
        cache = self.home / ".cache" / "tensorlens"
        cache.mkdir(parents=True)
        (cache / "native").symlink_to(cache / "native")
        assert folders.cache_folder() == self.in_scratch

    def test_cache_folder_below_home(self):
        assert folders.cache_folder() == self.home / ".cache" / "tensorlens" / "native"

    def test_read_only_home_gives_way_to_the_temporary_folder(self, monkeypatch):
        self.refuse(monkeypatch, self.home)
        assert folders.cache_folder() == self.in_scratch

    def test_home_that_does_not_exist_and_cannot_be_made(self, monkeypatch):
        monkeypatch.setenv("HOME", "/proc/nonexistent")
        self.refuse(monkeypatch, Path("/proc"))
        assert folders.cache_folder() == self.in_scratch

    def test_no_cache_folder(self, monkeypatch):
        self.refuse(monkeypatch, self.home.parent)
        assert folders.cache_folder() is None

    def test_no_temporary_folder_at_all(self, monkeypatch):
        def none():
            raise FileNotFoundError(2, "No usable temporary directory found")

        self.refuse(monkeypatch, self.home)
        monkeypatch.setattr("tempfile.gettempdir", none)
        assert folders.cache_folder() is None

    def test_folder_that_others_can_write_to_is_not_used(self, monkeypatch):
        self.refuse(monkeypatch, self.home)
        self.in_scratch.parent.mkdir(mode=0o700)
        self.in_scratch.parent.chmod(0o777)
        assert folders.cache_folder() is None

    def test_link_in_the_temporary_folder_is_not_used(self, monkeypatch):
        self.refuse(monkeypatch, self.home)
        self.in_scratch.parent.symlink_to(self.home)
        assert folders.cache_folder() is None


def test_doctor_without_home(tmp_path):
    code = f"{NOBODY}\nfrom tensorlens.frameworks import diagnosis\n"
    code += "print(*diagnosis.examine('torch'), sep='\\n')"
    done = run(tmp_path, code, TMPDIR=str(tmp_path), PATH="/nowhere")
    assert "reinstall" not in done.stdout
    (line,) = (each for each in done.stdout.splitlines() if "native counter" in each)
    assert "no C++ compiler was found" in line
