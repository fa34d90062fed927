"""The doctor's table: what it says, its width, its exit code, and what it must not load."""

import argparse
import builtins
import importlib.util
import json
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest

from tensorlens.cli import doctor
from tensorlens.frameworks import diagnosis
from tests.json_page import Checker

MAIN = """
import argparse, functools, sys
from tensorlens.cli import doctor

# asked once for all that is printed here: they take seconds
doctor._framework = functools.cache(doctor._framework)
parser = argparse.ArgumentParser(prog="tensorlens")
doctor.add_doctor(parser.add_subparsers(required=True))
for encoding, *arguments in (("ascii",), ("utf-8",), ("utf-8", "--json")):
    assert encoding == "utf-8" or sys.stdout.encoding == encoding
    sys.stdout.reconfigure(encoding=encoding)
    args = parser.parse_args(["doctor", *arguments])
    assert args.func(args) == 0
    print(end="\\0", flush=True)
assert "tensorflow" not in sys.modules
torch = sys.modules.get("torch")
assert torch is None or not torch.cuda.is_initialized()
"""


@pytest.fixture(scope="module")
def printed():
    """What a terminal without UTF-8, one with it, and a program that asks for JSON are told."""
    plain = {"PYTHONIOENCODING": "ascii", "LANG": "C", "LC_ALL": "C"}
    done = subprocess.run(
        [sys.executable, "-c", MAIN],
        capture_output=True,
        env={**os.environ, **plain, "COLUMNS": "80"},
    )
    assert done.returncode == 0, done.stderr
    *texts, rest = done.stdout.split(b"\0")
    assert rest == b""
    return texts


@pytest.fixture
def output(printed):
    pytest.importorskip("torch")
    return printed[1].decode()


def test_doctor_lists_python_torch_cpu_and_backends(output):
    for word in ("Python 3", "sys.", "torch 2", "- cpu", "- native counter"):
        assert word in output
    for backend in ("cuda", "xpu", "mps", "tensorflow", "pandas", "IPython"):
        assert backend in output


def test_doctor_fits_eighty_columns(output):
    assert max(map(len, output.splitlines())) <= 80


def test_doctor_without_utf8(printed):
    assert printed[0].isascii()
    assert b"\n  ok  Python" in printed[0]


def test_doctor_begins_with_what_can_be_measured(output):
    assert output.startswith("Memory can be measured here: torch on cpu")


def test_json_holds_the_same_findings(printed):
    report = json.loads(printed[2])
    Checker().check(report)
    assert (report["schema"], report["version"]) == ("tensorlens.doctor", 1)
    assert report["measurable"] is True
    found = {(item["part_of"], item["name"]): item for item in report["findings"]}
    assert found["torch", "cpu"]["measures"]
    assert found["torch", "cuda"]["ok"] in (True, False)
    if importlib.util.find_spec("tensorflow") is not None:
        assert found["tensorflow", "cpu"]["measures"]


def test_doctor_without_torch_says_how_to_install_it(monkeypatch, capsys):
    hide(monkeypatch, "torch", "tensorflow")
    assert doctor.run(argparse.Namespace(json=False)) == 0
    text = capsys.readouterr().out
    assert "pip install 'tensorlens[torch]'" in text
    assert "cpu " in text


def test_a_broken_framework_is_a_finding_not_a_traceback(monkeypatch):
    def broken(name):
        raise OSError("libc10.so: cannot open shared object file\nmore")

    monkeypatch.setattr(diagnosis, "import_module", broken)
    (found,) = diagnosis.examine("torch")
    reason = "OSError: libc10.so: cannot open shared object file"
    assert found == diagnosis.unusable("torch", reason) and not found.ok


def test_a_framework_that_works_and_cannot_be_read(monkeypatch):
    def partly(name):
        if name != "tensorflow":
            raise RuntimeError("broken")
        return SimpleNamespace(__version__="2.21.0")

    monkeypatch.setattr(diagnosis, "import_module", partly)
    (found,) = diagnosis.examine("tensorflow")
    assert found.name == "tensorflow 2.21.0"
    assert found.detail == "it works, but tensorlens cannot read it: RuntimeError: broken"


@pytest.mark.skipif(os.name != "posix", reason="a script stands for Python")
def test_doctor_fails_when_nothing_can_be_measured(monkeypatch, capsys, tmp_path):
    hide(monkeypatch, "torch")
    # as a process with TensorFlow would end; that it does is for the tests of its counters
    stand_in = tmp_path / "python"
    stand_in.write_text('#!/bin/sh\necho "refused: $TENSORLENS_COUNTER" >&2\nexit 1\n')
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setattr(doctor, "find_spec", having(doctor.find_spec, "tensorflow"))
    monkeypatch.setenv("TENSORLENS_COUNTER", "nonsense")
    assert doctor.run(argparse.Namespace(json=False)) == 1
    said = " ".join(capsys.readouterr().out.split())
    assert "TENSORLENS_COUNTER=nonsense" in said
    assert "installed but unusable: refused: nonsense; reinstall tensorflow" in said


@pytest.mark.skipif(os.name != "posix", reason="a script stands for Python")
@pytest.mark.parametrize("last", ["[freed 3 buffers]", "[1, 2]", "{}", "\\377"])
def test_output_of_a_framework_at_exit_is_no_finding(monkeypatch, tmp_path, last):
    found = '[{"name": "torch 2", "ok": true, "detail": "works"}]'
    stand_in = tmp_path / "python"
    stand_in.write_text(f"#!/bin/sh\nprintf '%s\\n' '{found}'\nprintf '{last}\\n'\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setattr(doctor, "find_spec", having(doctor.find_spec, "torch"))
    assert [each for each in doctor.examine() if each.name == "torch 2" and each.ok]


@pytest.mark.skipif(os.name != "posix", reason="a script stands for Python")
def test_a_framework_that_tells_nothing_is_a_finding(monkeypatch, tmp_path):
    stand_in = tmp_path / "python"
    stand_in.write_text("#!/bin/sh\necho good-bye\n")
    stand_in.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(stand_in))
    monkeypatch.setattr(doctor, "find_spec", having(doctor.find_spec, "torch"))
    (found,) = (each for each in doctor.examine() if each.name == "torch")
    assert not found.ok and found.detail.startswith("installed but unusable")


def having(find, package):
    return lambda name: object() if name == package else find(name)


@pytest.mark.parametrize(
    ("devices", "ok", "words"),
    [
        (0, False, "this process sees no device"),
        (8, True, "8 devices; allocated, peak from: S; exact; no reserved: why"),
        (None, True, "number of devices unknown until it is initialised; "),
    ],
)
def test_backend_findings(monkeypatch, devices, ok, words):
    pytest.importorskip("torch")
    from tensorlens.frameworks.torch import diagnosis

    kind = SimpleNamespace(name="cuda", build="a CUDA build")
    monkeypatch.setattr(diagnosis.accelerators, "backends", {})
    assert diagnosis._accelerator(kind).detail == "not in this torch; needs a CUDA build"
    backend = SimpleNamespace(visible=lambda: devices)
    counter = SimpleNamespace(source="S", precision="exact", missing={"reserved": "why"})
    monkeypatch.setattr(diagnosis.accelerators, "backends", {"cuda": backend})
    monkeypatch.setattr(diagnosis.accelerators, "DeviceCounter", lambda *_: counter)
    finding = diagnosis._accelerator(kind)
    assert finding.ok is finding.measures is ok
    assert words in finding.detail


def hide(monkeypatch, *packages):
    real = importlib.util.find_spec
    monkeypatch.setattr(doctor, "find_spec", lambda name: None if name in packages else real(name))
    actual = builtins.__import__

    def guarded(name, *rest):
        assert name.partition(".")[0] not in packages, f"{name} was imported"
        return actual(name, *rest)

    monkeypatch.setattr(builtins, "__import__", guarded)
