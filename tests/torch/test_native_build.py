import os
import signal
import stat
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tensorlens import TensorlensError
from tensorlens.frameworks.torch import COUNTER
from tensorlens.frameworks.torch import native as torch_parts
from tensorlens.native import build
from tests import warm
from tests.copied_compiler import copied_compiler

ROOT = Path(__file__).parents[2]
COUNT = """
import torch
from tensorlens.frameworks.torch import Adapter
counter = Adapter().cpu_counter()
read = counter.reader()
before = read()[0]
kept = torch.empty(1000)
print(counter.source, "|", read()[0] - before, "|", *Adapter().notes())
"""


def start(code, interpreter=None, **environment):
    return subprocess.Popen(
        [*(interpreter or warm.python()), "-c", code],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), **environment},
    )


def finish(process):
    out, err = process.communicate(timeout=100)
    assert (process.returncode, err) == (0, "")
    return out.strip()


@pytest.mark.parametrize(
    ("text", "standard"),
    [
        ("    CXX_STANDARD 20\n", "c++20"),
        ("target_compile_features(torch INTERFACE cxx_std_20)\n", "c++20"),
        ("set(TORCH_CXX_FLAGS)\n", "c++17"),
    ],
    ids=["until 2.14", "since 2.15", "not stated"],
)
def test_the_standard_is_the_one_that_torch_states(monkeypatch, tmp_path, text, standard):
    header = tmp_path / "include" / "c10" / "core" / "Allocator.h"
    config = tmp_path / "share" / "cmake" / "Torch" / "TorchConfig.cmake"
    for each in (header, config):
        each.parent.mkdir(parents=True)
    header.touch()
    config.write_text(text, "utf-8")
    monkeypatch.setattr(torch_parts, "torch_folder", lambda label: tmp_path)
    assert f"-std={standard}" in COUNTER.arguments()


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """What two processes say that build at once, and the folder of their cache."""
    home = tmp_path_factory.mktemp("built")
    compiler = copied_compiler(COUNTER, home)
    processes = [start(COUNT, XDG_CACHE_HOME=str(home), CXX=compiler) for _ in range(2)]
    return [finish(process) for process in processes], home / "tensorlens" / "native"


@pytest.fixture(scope="module")
def built(both):
    """One built library, that tests may copy."""
    (said, _), folder = both
    libraries = [*folder.glob("*.so")]
    if not libraries:
        pytest.skip(said)
    return libraries[0]


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path / "no home"))
    return tmp_path / "tensorlens" / "native"


@pytest.fixture
def compiled(monkeypatch, built):
    """Replace the compiler by a copy, and tell how often it ran."""
    runs = []

    def copy(part, output):
        runs.append(output)
        output.write_bytes(built.read_bytes())

    monkeypatch.setattr(build, "_compile", copy)
    return runs


def refuse(part, output):
    raise AssertionError("compiled again")


def failure(monkeypatch, **environment):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(build.NativeUnavailable) as caught:
        build.load(COUNTER)
    text = str(caught.value)
    assert isinstance(caught.value, TensorlensError)
    assert "\n" not in text
    return text


def script(folder, text):
    path = folder / "compiler"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_two_processes_build_at_once_and_quietly(both):
    said, folder = both
    assert said == ["torch CPU allocator | 4000 |"] * 2
    (library,) = folder.iterdir()
    assert library.suffix == ".so"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_broken_compiler_is_one_line_and_the_fallback(tmp_path):
    out = finish(start(COUNT, XDG_CACHE_HOME=str(tmp_path), CXX="/bin/false"))
    (line,) = out.splitlines()
    source, _, note = line.split(" | ")
    assert source in ("C heap (glibc mallinfo2)", "resident set")
    assert note == (
        "the native CPU counter was not built: /bin/false failed with exit code 1: "
        f"install g++ or set CXX to a working C++ compiler; CPU figures are from: {source}"
    )


def test_native_demanded_but_not_to_be_had(tmp_path):
    code = COUNT.replace(
        "counter = Adapter().cpu_counter()",
        """
try:
    counter = Adapter().cpu_counter()
except ValueError as error:
    raise SystemExit(print(error))
""",
    )
    out = finish(
        start(code, XDG_CACHE_HOME=str(tmp_path), CXX="/bin/false", TENSORLENS_COUNTER="native")
    )
    assert out.startswith("TENSORLENS_COUNTER=native: the native CPU counter was not built")
    assert len(out.splitlines()) == 1


def test_the_second_load_does_not_compile(cache, compiled, monkeypatch):
    build.load(COUNTER)
    assert len(compiled) == 1
    monkeypatch.setattr(build, "_compile", refuse)
    assert build.load(COUNTER).tl_allocated
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("damage", [b"", b"\x7fELF", None])
def test_a_damaged_library_is_built_once_more(cache, compiled, damage):
    build.load(COUNTER)
    (library,) = cache.iterdir()
    whole = library.read_bytes()
    library.chmod(0o600)
    # a new file: the loaded one must not change under this process
    library.unlink()
    library.write_bytes(whole[: len(whole) // 2] if damage is None else damage)
    library.chmod(0o600)
    build.load(COUNTER)
    assert len(compiled) == 2
    assert [path.read_bytes() for path in cache.iterdir()] == [whole]
    build.load(COUNTER)
    assert len(compiled) == 2


def test_library_writable_by_others_is_not_loaded(cache, compiled):
    build.load(COUNTER)
    (library,) = cache.iterdir()
    library.chmod(0o666)
    build.load(COUNTER)
    assert len(compiled) == 2
    cache.chmod(0o777)
    build.load(COUNTER)
    assert len(compiled) == 3
    assert len(list(cache.iterdir())) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_another_users_library_is_not_loaded(cache, compiled):
    build.load(COUNTER)
    os.chown(cache, 12345, 12345)
    build.load(COUNTER)
    assert len(compiled) == 2


def test_no_cache_folder_can_be_made(tmp_path, monkeypatch, compiled):
    monkeypatch.setattr(build, "cache_folder", lambda: None)
    assert build.load(COUNTER).tl_allocated
    assert build.load(COUNTER).tl_allocated
    assert len(compiled) == 2
    assert not compiled[0].parent.exists()


def test_a_full_disk(cache, monkeypatch, compiled):
    original = Path.write_bytes

    def write(self, data):
        if self.suffix == ".tmp":
            original(self, data[:100])
            raise OSError(28, "No space left on device")
        return original(self, data)

    monkeypatch.setattr(Path, "write_bytes", write)
    assert build.load(COUNTER).tl_allocated
    assert list(cache.iterdir()) == []


def test_the_key_covers_torch_and_the_source(monkeypatch, tmp_path):
    before = build._key(COUNTER)
    assert build._key(COUNTER) == before
    changed = tmp_path / "counter.cpp"
    changed.write_bytes(COUNTER.source.read_bytes() + b"\n")
    assert build._key(replace(COUNTER, source=changed)) != before
    with monkeypatch.context() as patch:
        patch.setattr(torch_parts, "version_text", lambda: "__version__ = '9.9.9'")
        assert build._key(COUNTER) != before


def test_the_cache_home_follows_xdg(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert build.cache_folder() == Path("/home/someone/.cache/tensorlens/native")
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert build.cache_folder() == Path("/home/someone/.cache/tensorlens/native")
    monkeypatch.setenv("XDG_CACHE_HOME", "/var/cache/someone")
    assert build.cache_folder() == Path("/var/cache/someone/tensorlens/native")


def test_build_without_a_compiler(cache, monkeypatch):
    monkeypatch.delenv("CXX", raising=False)
    text = failure(monkeypatch, PATH="/nowhere")
    assert text == (
        "the native CPU counter was not built: no C++ compiler was found (looked for c++, g++, "
        "clang++): install g++ or set CXX to a working C++ compiler"
    )


def test_build_with_a_missing_compiler(cache, monkeypatch):
    text = failure(monkeypatch, CXX="/nowhere/g++")
    assert "cannot run /nowhere/g++: No such file or directory: install g++" in text


def test_an_unreadable_cxx(cache, monkeypatch):
    assert "CXX" in failure(monkeypatch, CXX="g++ 'unclosed")


def test_an_error_of_the_compiler_is_shown_in_one_line(cache, tmp_path, monkeypatch):
    path = script(tmp_path, "echo notes >&2; echo 'x.h:1: fatal error: gone' >&2; exit 3")
    text = failure(monkeypatch, CXX=path)
    assert f"{path} failed with exit code 3 (x.h:1: fatal error: gone): install g++" in text


def test_a_compiler_that_makes_nothing(cache, monkeypatch):
    assert "failed with exit code 0" in failure(monkeypatch, CXX="/bin/true")


def test_a_compiler_that_makes_rubbish(cache, tmp_path, monkeypatch):
    path = script(tmp_path, 'while [ "$1" != -o ]; do shift; done; echo rubbish > "$2"')
    text = failure(monkeypatch, CXX=path)
    assert text.startswith("the native CPU counter was built but does not load: ")


def test_a_compiler_that_hangs_is_ended(cache, tmp_path, monkeypatch):
    path = script(tmp_path, "exec sleep 60")
    monkeypatch.setattr(build, "TIMEOUT", 0.5)
    assert f"{path} was not done after 0.5 s: install g++" in failure(monkeypatch, CXX=path)


def _is_gone(pid):
    for _ in range(100):
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_headers_that_are_missing(cache, tmp_path, monkeypatch):
    monkeypatch.setattr(torch_parts, "torch_folder", lambda label: tmp_path)
    assert "libc10.so" in failure(monkeypatch)
    (tmp_path / "lib").mkdir()
    (tmp_path / "lib" / "libc10.so").write_text("")
    assert "this torch has no C++ headers" in failure(monkeypatch)


def test_an_interrupt_leaves_nothing_behind(tmp_path):
    pid = tmp_path / "pid"
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    # more than a pipe holds: once it goes on, what it says is being read
    says = "head -c 200000 /dev/zero >&2"
    path = script(tmp_path, f"{says}; echo $$ > {pid}.new; mv {pid}.new {pid}; sleep 60")
    places = {"XDG_CACHE_HOME": str(tmp_path), "TMPDIR": str(scratch)}
    process = start(COUNT, [sys.executable], **places, CXX=path)
    while not pid.exists():
        assert process.poll() is None
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert err.rstrip().endswith("KeyboardInterrupt")
    assert _is_gone(int(pid.read_text()))
    assert list(scratch.iterdir()) == []
    assert not (tmp_path / "tensorlens").exists()
