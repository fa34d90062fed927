"""A wheel with its native parts in it, in an environment that has no compiler."""

import json
import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("tensorflow")
pytest.importorskip("hatchling")
if sys.platform != "linux":
    pytest.skip("a wheel with native parts is for Linux", allow_module_level=True)

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, torch, tensorlens

def work():
    first = torch.empty(1000, dtype=torch.float32)
    second = torch.empty(500, dtype=torch.float64)
    del first

if __name__ == "__main__":
    with tensorlens.LineProfiler(work) as profiler:
        work()
    lines = profiler.result().functions[0].lines
    print(json.dumps({
        "place": tensorlens.__file__,
        "net": [line.memory["cpu"].net for line in lines if line.memory.get("cpu")],
    }))
"""


def _run(*arguments: str | Path, cwd: Path = ROOT, **environment: str) -> str:
    done = subprocess.run(
        [str(each) for each in arguments],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_wheel_with_native_parts_needs_no_compiler(tmp_path: Path) -> None:
    binaries, home = tmp_path / "prebuilt", tmp_path / "home"
    home.mkdir()
    # one without a framework and one with: to compile all takes a minute
    parts = ("--parts", "heap", "counter")
    _run(sys.executable, ROOT / "packaging" / "prebuilt.py", binaries, "--installed", *parts)
    pip = (sys.executable, "-m", "pip")
    _run(
        *(*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, ROOT),
        TENSORLENS_PREBUILT=str(binaries),
        TENSORLENS_PLATFORM=sysconfig.get_platform().replace("-", "_"),
    )
    (wheel,) = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    _run(*pip, "--python", python, "install", "--no-compile", "--no-deps", "--no-index", wheel)
    # torch, TensorFlow and what the package needs, but not its own sources
    (folder,) = (tmp_path / "venv").glob("lib/python3*/site-packages")
    (folder / "others.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    program = tmp_path / "program.py"
    program.write_text(PROGRAM, "utf-8")

    bare = {"PATH": "", "HOME": str(home), "XDG_CACHE_HOME": "", "CXX": "", "PYTHONPATH": ""}
    result = json.loads(_run(python, program, cwd=home, **bare).splitlines()[-1])
    assert result["place"].startswith(str(folder))
    assert result["net"] == [4000, 4000, -4000]

    doctor = _run(python, "-m", "tensorlens", "doctor", "--json", cwd=home, **bare)
    findings = json.loads(doctor)["findings"]
    (counter,) = (
        each for each in findings if (each["name"], each["part_of"]) == ("native counter", "torch")
    )
    assert counter["detail"] == "came built with the package"
    assert not list(home.rglob("*.so"))
