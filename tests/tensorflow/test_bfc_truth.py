"""The simulated BFC allocator against TensorFlow's own: every address and every figure."""

import importlib.util
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from tensorlens.planning.allocators import BFCAllocator, SimulatedOutOfMemory
from tests.warm import python

HERE = Path(__file__).parent
MIB = 1 << 20
FIRST = 1 << 44


@pytest.fixture(scope="module")
def truth(tmp_path_factory):
    """The program that makes requests of TensorFlow's allocator, compiled against the wheel."""
    compiler = shutil.which("c++") or shutil.which("g++")
    folder = Path(importlib.util.find_spec("tensorflow").origin).parent
    libraries = sorted(folder.glob("libtensorflow_framework.so*"))
    if compiler is None or not libraries:
        pytest.skip("no C++ compiler, or no library of TensorFlow's to link with")
    program = tmp_path_factory.mktemp("bfc") / "truth"
    arguments = ["-std=c++17", "-DNDEBUG", "-isystem", folder / "include", HERE / "bfc_truth.cpp"]
    arguments += ["-o", program, libraries[0], f"-Wl,-rpath,{folder}"]
    subprocess.run([compiler, *arguments], check=True)
    return program


def size(rng, largest):
    """As many tiny requests as large ones; some of them of round sizes, that come again."""
    if rng.random() < 0.3:
        return min(rng.choice((4, 256, 1024, 1 << 16, MIB, 3 * MIB, 16 * MIB)), largest)
    return int(4 * (largest / 4) ** rng.random())


def requests(seed, allocator, *, steps=4000, largest=64 * MIB, living=120):
    """Make random requests of an allocator; return them, and what it says after each."""
    rng = random.Random(seed)
    addresses, lines, answers = {}, [], []
    for key in range(steps):
        # waves: memory fills up, and is nearly emptied again
        fill = living if key // 500 % 2 == 0 else living // 6
        address = 0
        if addresses and rng.random() < len(addresses) / (2 * fill):
            freed = rng.choice(list(addresses))
            allocator.free(addresses.pop(freed))
            lines.append(f"f {freed}")
        else:
            nbytes = size(rng, largest)
            lines.append(f"m {key} {nbytes}")
            try:
                address = addresses[key] = allocator.malloc(nbytes)
            except SimulatedOutOfMemory:
                pass
        answers.append((address, *counted(allocator)))
    return lines, answers


def counted(allocator):
    figures = allocator.figures
    allocated, reserved = figures.allocated, figures.reserved
    return allocated.current, allocated.peak, reserved.current, reserved.peak


class Downwards:
    """Regions that are each placed below the one before, as ``mmap`` does."""

    def __init__(self):
        self.next = FIRST

    def __call__(self, nbytes):
        self.next -= -(-nbytes // (2 * MIB)) * (2 * MIB)
        return self.next


def ask(program, lines, limit, direction=1):
    asked = subprocess.run(
        [program, str(limit), str(direction)],
        input="\n".join(lines),
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    return [tuple(map(int, line.split())) for line in asked.stdout.splitlines()]


ON_CPU = 64 << 30
CASES = {
    "CPU": ON_CPU,
    "a limit in reach": 300 * MIB + 1000,
    "less than a first region": MIB - 100,
}


@pytest.mark.parametrize(
    ("case", "direction"), [*((case, 1) for case in CASES), ("CPU", -1), ("a limit in reach", -1)]
)
def test_every_address_and_figure(truth, case, direction):
    limit = CASES[case]
    failed = 0
    for seed in range(2):
        allocator = BFCAllocator(limit)
        if direction < 0:
            allocator._reserve_addresses = Downwards()
        largest = 64 * MIB if limit > MIB else MIB // 4
        lines, answers = requests(seed, allocator, largest=largest)
        assert answers == ask(truth, lines, limit, direction)
        failed += sum(
            line[0] == "m" and not answer[0] for line, answer in zip(lines, answers, strict=True)
        )
    assert bool(failed) == (case != "CPU")


def test_the_128_mib_that_a_chunk_may_exceed_its_request(truth):
    for seed in range(2):
        allocator = BFCAllocator(ON_CPU)
        lines, answers = requests(seed, allocator, steps=1500, largest=1500 * MIB, living=8)
        assert answers == ask(truth, lines, ON_CPU)


def eager_requests(seed, steps):
    """Return requests of a program with eager tensors, and what they ask of its allocator."""
    rng = random.Random(seed)
    sizes = [size(rng, MIB) for _ in range(200)]
    sizes += [int(MIB * 64 ** rng.random()) for _ in range(100)]
    lines = [f"shape {key} {nbytes}" for key, nbytes in enumerate(sizes)]
    asked = [("m", key, 4) for key in range(len(sizes))]
    living: list[int] = []
    for key in range(len(lines), len(lines) + steps):
        fill = 150 if key // 400 % 2 == 0 else 30
        if rng.random() < 0.01:
            lines.append("reset")
            asked.append(("r", 0, 0))
        elif living and rng.random() < len(living) / (2 * fill):
            freed = living.pop(rng.randrange(len(living)))
            lines.append(f"del {freed}")
            asked.append(("f", freed, 0))
        else:
            shape = rng.randrange(len(sizes))
            nbytes = sizes[shape]
            lines.append(f"{'filled' if nbytes <= MIB else 'empty'} {key} {shape}")
            asked.append(("m", key, nbytes))
            living.append(key)
    return lines, asked


def test_eager_tensors_on_the_cpu():
    lines, asked = eager_requests(1, 4000)
    environment = {**os.environ, "TF_CPU_ALLOCATOR_USE_BFC": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
    told = subprocess.run(
        [*python(tensorflow=True), HERE / "eager_requests.py"],
        input="\n".join(lines),
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=300,
    )
    told_of = [tuple(map(int, line.split())) for line in told.stdout.splitlines()]
    assert len(told_of) == len(lines)
    # the number that tensors are filled with was there before
    place = told_of[0][0] - 256
    allocator = BFCAllocator(ON_CPU)
    allocator._reserve_addresses = lambda nbytes: place
    addresses = {-1: allocator.malloc(1)}
    for (what, key, nbytes), answer in zip(asked, told_of, strict=True):
        place, address = answer[0], 0
        if what == "m":
            # the request that needs a new region is at its beginning
            address = addresses[key] = allocator.malloc(nbytes)
        elif what == "f":
            allocator.free(addresses.pop(key))
        else:
            allocator.reset_peaks()
        allocated = allocator.figures.allocated
        assert (address, allocated.current, allocated.peak) == answer
    # many regions, not one for each request
    assert 5 < len(allocator.segments()) < 20
