"""Builds the native parts of a Linux wheel: for each release of torch and TensorFlow one set.

    python packaging/prebuilt.py FOLDER --machine aarch64

Only headers are fetched, by byte ranges of the wheels that pip finds. The libraries that a part
links with are stand-ins of the same name: when the part is loaded, the framework's own are there.
Torch and TensorFlow have to be installed, as the parts are described in modules that import them.
"""

from __future__ import annotations

import argparse
import importlib
import io
import json
import os
import platform
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from tensorlens.frameworks.tensorflow.census.tensor_reader import READER
from tensorlens.frameworks.tensorflow.cpu import TAP
from tensorlens.frameworks.torch.native import COUNTER, DEVICE, DEVICE_BLOCKS, OPS, TENSORS
from tensorlens.heap.native import PART as HEAP
from tensorlens.native.build import NativePart, command, shipped_name
from tensorlens.planning.torch.device.stand_in import SINCE

TORCH = (
    *("2.6.0", "2.7.1", "2.8.0", "2.9.1", "2.10.0", "2.11.0", "2.12.1", "2.13.0", "2.14.1"),
    "2.15.0",
)
"""The newest patch of each minor release of torch that is supported; a new one is added here."""
TENSORFLOW = ("2.16.2", "2.17.1", "2.18.1", "2.19.1", "2.20.0", "2.21.0")
"""The same of TensorFlow."""
READER_SINCE = (2, 20)
"""The first TensorFlow that has the library that the reader of tensors is linked with."""

_PLATFORMS = ("2_17", "2_26", "2_27", "2_28", "2_34", "2_35")
_READ_AHEAD = 4 << 20
"""Bytes of one request: the headers lie side by side in a wheel."""


@dataclass(frozen=True)
class Job:
    """One binary to make."""

    part: NativePart
    release: str
    """As :attr:`Part.release` gives it; empty for a part without a framework."""
    headers: tuple[str, str] | None
    """Name and version of the package whose headers it needs."""
    flags: tuple[str, ...] = ()


def jobs(torch_releases: tuple[str, ...], tensorflow_releases: tuple[str, ...]) -> Iterator[Job]:
    """Yield what a wheel consists of."""
    yield Job(HEAP, "", None)
    for version in torch_releases:
        number = _number(version)
        parts = [COUNTER, TENSORS, OPS, DEVICE_BLOCKS]
        parts += [DEVICE] if number >= SINCE[:2] else []
        # the published builds of 2.6 for x86_64 have the older ABI of std::string
        for abi in (0, 1) if number == (2, 6) else (1,):
            flags = ("-std=c++20", f"-D_GLIBCXX_USE_CXX11_ABI={abi}")
            release = f"torch{number[0]}.{number[1]}-abi{abi}"
            yield from (Job(part, release, ("torch", version), flags) for part in parts)
    for version in tensorflow_releases:
        number = _number(version)
        flags = ("-std=c++17", "-D_GLIBCXX_USE_CXX11_ABI=1", "-DEIGEN_MAX_ALIGN_BYTES=64")
        release = f"tensorflow{number[0]}.{number[1]}"
        for part in (TAP, READER) if number >= READER_SINCE else (TAP,):
            yield Job(part, release, ("tensorflow", version), flags)


def build(job: Job, output: Path, machine: str, compiler: str, headers: Path, stubs: Path) -> Path:
    """Compile one binary into a folder, and return its path.

    Raises:
        SystemExit: the compiler refused; its first error is printed.
    """
    path = output / shipped_name(job.part, job.release, machine)
    libraries = tuple(_stub(stubs, compiler, each) for each in job.part.libraries)
    include = ("-isystem", str(headers)) if job.headers else ()
    part = replace(job.part, libraries=libraries)
    arguments = (*job.flags, *include, "-s", "-Wl,--no-as-needed")
    done = subprocess.run(
        command(part, path, [compiler], arguments), capture_output=True, text=True, check=False
    )
    if done.returncode:
        error = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr)
        raise SystemExit(f"{path.name}: {error}")
    return path


def _stub(folder: Path, compiler: str, option: str) -> str:
    """Return the path of an empty library of the name that a linker option stands for."""
    name = option.removeprefix("-l")
    name = name[1:] if name.startswith(":") else f"lib{name}.so"
    path = folder / name
    if not path.exists():
        arguments = ("-shared", "-nostdlib", "-x", "c", os.devnull, f"-Wl,-soname,{name}")
        subprocess.run([compiler, *arguments, "-o", str(path)], check=True)
    return str(path)


def fetch_headers(package: str, version: str, folder: Path) -> Path:
    """Extract the headers of a published wheel below a folder; return the folder of includes."""
    names = {
        "torch": ("torch", "torch/include/", "aarch64"),
        "tensorflow": ("tensorflow-cpu", "tensorflow/include/", "x86_64"),
    }
    distribution, prefix, machine = names[package]
    root = folder / f"{package}-{version}"
    with _wheel(distribution, version, machine) as file, zipfile.ZipFile(file) as wheel:
        members = [each for each in wheel.infolist() if each.filename.startswith(prefix)]
        for member in sorted(members, key=lambda each: each.header_offset):
            wheel.extract(member, root)
    return root / prefix


def _wheel(distribution: str, version: str, machine: str) -> io.BufferedReader:
    platforms = [f"manylinux_{each}_{machine}" for each in _PLATFORMS]
    platforms += [f"manylinux2014_{machine}"]
    with tempfile.TemporaryDirectory() as scratch:
        report = Path(scratch) / "report.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "pip", "install", "--quiet", "--dry-run", "--no-deps"),
                *("--ignore-installed", "--only-binary", ":all:", "--python-version", "3.12"),
                *("--target", scratch, "--report", str(report)),
                *(option for each in platforms for option in ("--platform", each)),
                f"{distribution}=={version}",
            ],
            check=True,
        )
        url = json.loads(report.read_text("utf-8"))["install"][0]["download_info"]["url"]
    if url.startswith("file:"):
        return Path(urllib.request.url2pathname(url.removeprefix("file:"))).open("rb")
    return io.BufferedReader(RangeFile(url), _READ_AHEAD)


class RangeFile(io.RawIOBase):
    """A file of a web server, read by ranges of its bytes."""

    def __init__(self, url: str) -> None:
        self._url, self._position = url, 0
        with urllib.request.urlopen(urllib.request.Request(url, method="HEAD")) as answer:
            self._length = int(answer.headers["Content-Length"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._length}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        last = min(self._position + len(buffer), self._length) - 1
        if last < self._position:
            return 0
        request = urllib.request.Request(self._url)
        request.add_header("Range", f"bytes={self._position}-{last}")
        with urllib.request.urlopen(request) as answer:
            content = answer.read()
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)


def _number(version: str) -> tuple[int, int]:
    major, minor = version.split(".")[:2]
    return int(major), int(minor)


def _installed(package: str) -> tuple[str, ...]:
    return (str(importlib.import_module(package).__version__).split("+")[0],)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where the binaries go")
    parser.add_argument("--machine", default=platform.machine(), choices=("x86_64", "aarch64"))
    parser.add_argument(
        "--installed",
        action="store_true",
        help="only for the installed torch and TensorFlow, whose own headers are taken",
    )
    parser.add_argument("--parts", nargs="+", metavar="NAME", help="only these: heap counter")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    cross = f"{options.machine}-linux-gnu-g++"
    compiler = "g++" if options.machine == platform.machine() else cross
    releases = (TORCH, TENSORFLOW)
    if options.installed:
        releases = (_installed("torch"), _installed("tensorflow"))
    with tempfile.TemporaryDirectory() as scratch, ThreadPoolExecutor(os.cpu_count()) as pool:
        get = _own_headers if options.installed else fetch_headers
        wanted = [
            job for job in jobs(*releases) if not options.parts or job.part.name in options.parts
        ]
        _build_all(options, wanted, compiler, Path(scratch), pool, get)


def _own_headers(package: str, version: str, folder: Path) -> Path:
    return Path(sys.modules[package].__file__ or "").parent / "include"


def _build_all(
    options: argparse.Namespace,
    all_jobs: list[Job],
    compiler: str,
    scratch: Path,
    pool: ThreadPoolExecutor,
    get_headers: Callable[[str, str, Path], Path],
) -> None:
    for option in {option for job in all_jobs for option in job.part.libraries}:
        _stub(scratch, compiler, option)
    folders = {}
    for headers in dict.fromkeys(job.headers for job in all_jobs):
        folders[headers] = get_headers(*headers, scratch) if headers else scratch
        print(" ".join(headers) if headers else "no framework", flush=True)
        ours = [job for job in all_jobs if job.headers == headers]
        made = [
            pool.submit(
                build, job, options.folder, options.machine, compiler, folders[headers], scratch
            )
            for job in ours
        ]
        for each in made:
            path = each.result()
            print(f"  {path.stat().st_size:9,} B  {path.name}", flush=True)


if __name__ == "__main__":
    main()
