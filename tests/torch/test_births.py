import gc
import os
import signal
import subprocess
import sys
import threading
import time
from array import array
from pathlib import Path

import pytest
import torch

from tensorlens.frameworks.host import allocator as native_allocator
from tensorlens.frameworks.torch import Adapter, TorchAllocator
from tensorlens.native import NativeUnavailable
from tests import warm

ROOT = Path(__file__).parents[2]
FILE = __file__


@pytest.fixture(scope="module")
def allocator():
    counter = Adapter().cpu_counter()
    if not isinstance(counter, TorchAllocator):
        pytest.skip("; ".join(Adapter().notes()))
    # a reporter that another test left alive is watching
    watchers = counter._watchers
    for _ in range(watchers):
        counter.watch_births(False)
    yield counter
    for _ in range(watchers):
        counter.watch_births()


@pytest.fixture
def watched(allocator):
    allocator.watch_births()
    yield allocator
    allocator.watch_births(False)


def number(allocator, tensor):
    (birth,), _ = allocator.births(array("Q", [tensor.untyped_storage().data_ptr()]))
    return birth


def born(allocator, tensor):
    """The line number and the last part of the function's name; it has to be in this file."""
    filename, line, function = allocator.birth_line(number(allocator, tensor))
    assert filename == FILE
    return line, function.rpartition(".")[2]


def line_of(text):
    """The only line of this file that ends in a comment of this text."""
    (found,) = [
        index
        for index, line in enumerate(Path(FILE).read_text().splitlines(), 1)
        if line.endswith("# " + text)
    ]
    return found


def make():
    return torch.empty(10)  # in make


def test_birth_in_a_function(watched):
    assert born(watched, make()) == (line_of("in make"), "make")


def test_the_function_has_its_qualified_name(watched):
    class Maker:
        def make(self):
            return torch.empty(1)

    name = watched.birth_line(number(watched, Maker().make()))[2]
    assert name == "test_the_function_has_its_qualified_name.<locals>.Maker.make"


def test_every_line_of_a_function(watched):
    first = torch.empty(3)  # first of two
    second = first + 1  # second of two
    both = [
        torch.ones(2),  # first in brackets
        torch.ones(2),  # second in brackets
    ]
    assert born(watched, first)[0] == line_of("first of two")
    assert born(watched, second)[0] == line_of("second of two")
    assert born(watched, both[0])[0] == line_of("first in brackets")
    assert born(watched, both[1])[0] == line_of("second in brackets")


def test_a_line_has_one_number(watched):
    one, two = (make() for _ in range(2))
    assert number(watched, one) == number(watched, two) >= 0


def test_code_of_torch_is_skipped(watched):
    layer = torch.nn.Linear(4, 3)  # layer made
    result = layer(torch.ones(2, 4))  # layer called
    assert born(watched, layer.weight)[0] == line_of("layer made")
    assert born(watched, result)[0] == line_of("layer called")


def test_the_users_own_module(watched):
    class Net(torch.nn.Module):
        def forward(self, x):
            return x * 2  # own forward

    assert born(watched, Net()(torch.ones(3))) == (line_of("own forward"), "forward")


def test_the_state_of_an_optimizer(watched):
    weight = torch.ones(5, requires_grad=True)
    weight.sum().backward()  # gradient made
    optimizer = torch.optim.Adam([weight])
    optimizer.step()  # state made
    assert born(watched, weight.grad)[0] == line_of("gradient made")
    assert born(watched, optimizer.state[weight]["exp_avg"])[0] == line_of("state made")


def test_the_standard_library_is_skipped(watched):
    import functools

    total = functools.reduce(torch.add, [torch.ones(2)] * 3)  # reduced
    assert born(watched, total)[0] == line_of("reduced")
    made = functools.singledispatch(lambda shape: torch.empty(shape))  # dispatched
    assert born(watched, made(4)) == (line_of("dispatched"), "<lambda>")


def test_birth_in_lambda_generator_and_recursion(watched):
    made = lambda: torch.empty(3)  # noqa: E731 # lambda
    assert born(watched, made()) == (line_of("lambda"), "<lambda>")

    def generate():
        while True:
            yield torch.empty(2)  # generated

    source = generate()
    next(source)
    assert born(watched, next(source)) == (line_of("generated"), "generate")

    def recurse(depth):
        return recurse(depth - 1) if depth else torch.empty(2)  # recursed

    assert born(watched, recurse(300)) == (line_of("recursed"), "recurse")


def test_birth_in_a_destructor(watched):
    kept = []

    class Dying:
        def __del__(self):
            kept.append(torch.empty(2))  # dying

    def scope():
        holder = Dying()
        return holder is None

    scope()
    assert born(watched, kept[0]) == (line_of("dying"), "__del__")


def test_on_a_thread_from_before_and_after(allocator):
    kept = {}
    go = threading.Event()

    def early():
        go.wait()
        kept["early"] = torch.empty(2)  # early thread

    def late():
        kept["late"] = torch.empty(2)  # late thread

    threads = [threading.Thread(target=early)]
    threads[0].start()
    allocator.watch_births()
    go.set()
    threads.append(threading.Thread(target=late))
    threads[1].start()
    for thread in threads:
        thread.join()
    allocator.watch_births(False)
    for name in ("early", "late"):
        assert born(allocator, kept[name]) == (line_of(f"{name} thread"), name)


def test_birth_in_saved_tensor_hooks(watched):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(context, x):
            return x * 2

        @staticmethod
        def backward(context, gradient):
            return gradient * 2  # own backward

    weight = torch.ones(3, requires_grad=True)
    kept = []
    result = Double.apply(weight)
    weight.register_hook(kept.append)
    result.sum().backward()
    assert born(watched, kept[0]) == (line_of("own backward"), "backward")


def test_code_without_a_file(watched):
    space = {"torch": torch}
    exec("\n\nkept = torch.empty(3)", space)
    assert watched.birth_line(number(watched, space["kept"])) == ("<string>", 3, "<module>")


def test_code_that_dies_is_not_mistaken_for_its_successor(watched):
    # compiled and freed in turn, each lands where the one before was
    for index in range(500):
        space = {"torch": torch}
        lines = "\n" * (index % 5)
        exec(compile(f"{lines}kept = torch.empty(3)", f"<cell {index % 7}>", "exec"), space)
        line = watched.birth_line(number(watched, space["kept"]))
        assert line == (f"<cell {index % 7}>", index % 5 + 1, "<module>")


def test_names_that_are_not_ascii(watched):
    # the last stands for a byte of a file name that is not UTF-8
    name = "/tmp/Größe 中 😀 \udce4.py"
    space = {"torch": torch}
    exec(compile("def maß(): return torch.empty(3)", name, "exec"), space)
    assert watched.birth_line(number(watched, space["maß"]())) == (name, 1, "maß")


@pytest.mark.parametrize("folder", ["site-packages", "dist-packages"])
def test_installed_packages_are_skipped_wherever_they_are(watched, folder):
    space = {"torch": torch}
    name = f"/somewhere/{folder}/package/part.py"
    exec(compile("def made(): return torch.empty(3)", name, "exec"), space)
    kept = space["made"]()  # through a package
    assert born(watched, kept)[0] == line_of("through a package")


def test_birth_without_user_code_is_the_innermost_line(watched):
    # a thread has no line of this file on its stack
    kept = []
    space = {"torch": torch, "kept": kept}
    source = "def inner(): kept.append(torch.empty(3))\ndef outer():\n    inner()"
    exec(compile(source, "/somewhere/site-packages/part.py", "exec"), space)
    thread = threading.Thread(target=space["outer"])
    thread.start()
    thread.join()
    line = watched.birth_line(number(watched, kept[0]))
    assert line == ("/somewhere/site-packages/part.py", 1, "inner")


def test_a_resized_storage_is_born_again(watched):
    tensor = torch.empty(10)
    tensor.resize_(1000)  # resized
    assert born(watched, tensor)[0] == line_of("resized")


def test_births_off_is_minus_one(allocator):
    allocator.watch_births()
    before = make()
    allocator.watch_births(False)
    after = make()
    assert number(allocator, after) == -1
    assert born(allocator, before) == (line_of("in make"), "make")


def test_births_watch_nests(allocator):
    allocator.watch_births()
    allocator.watch_births()
    allocator.watch_births(False)
    inside = make()
    allocator.watch_births(False)
    outside = make()
    # once too often is nothing
    allocator.watch_births(False)
    allocator.watch_births()
    again = make()
    allocator.watch_births(False)
    births = [number(allocator, tensor) for tensor in (inside, outside, again)]
    assert births == [births[0], -1, births[0]]
    assert births[0] >= 0


def test_unknown_addresses_and_births(watched):
    kept = make()
    births, _ = watched.births(array("Q", [0, kept.data_ptr(), kept.data_ptr() + 4]))
    assert births == array("i", [-1, number(watched, kept), -1])
    assert watched.births(array("Q")) == (array("i"), array("i"))
    for unknown in (-1, 1 << 30):
        with pytest.raises(LookupError, match=f"no birth {unknown}"):
            watched.birth_line(unknown)


def test_an_unmatched_block_tells_its_birth(watched):
    huge = torch.empty(256 << 20, dtype=torch.uint8)  # huge
    ((address, size, birth),) = watched.balance(array("Q"), limit=1).unmatched
    assert (address, size) == (huge.data_ptr(), 256 << 20)
    assert watched.birth_line(birth)[:2] == (FILE, line_of("huge"))


def test_a_block_handed_out_again_has_its_new_birth(watched):
    for _ in range(100):
        one = torch.empty(1000)
        first = number(watched, one)
        del one
        two = torch.empty(1000)
        assert number(watched, two) not in (first, -1)


def test_no_references_are_taken(watched):
    space = {"torch": torch}
    code = compile("kept = torch.empty(3)", "<counted>", "exec")
    before = sys.getrefcount(code), sys.getrefcount(code.co_filename)
    exec(code, space)
    assert (sys.getrefcount(code), sys.getrefcount(code.co_filename)) == before
    for _ in range(200):
        make()
    gc.collect()
    blocks = sys.getallocatedblocks()
    for _ in range(2000):
        make()
    assert sys.getallocatedblocks() - blocks < 50


def test_the_bytes_are_the_same(allocator):
    base = allocator.allocated()
    allocator.watch_births()
    kept = [make() for _ in range(1000)]
    assert allocator.allocated() - base == 40_000
    kept.clear()
    allocator.watch_births(False)
    assert allocator.allocated() == base


def test_births_on_unknown_python(allocator, monkeypatch):
    monkeypatch.setattr(allocator, "_births_prepared", False)
    monkeypatch.setattr(native_allocator, "_is_plain_cpython", lambda: False)
    with pytest.raises(NativeUnavailable, match="only for release builds of CPython"):
        allocator.watch_births()
    assert number(allocator, make()) == -1


def test_threads_backward_and_a_hog_of_the_gil_end(watched):
    stop = threading.Event()
    wrong = []

    def hog():
        while not stop.is_set():
            sum(range(2000))

    def allocate():
        here = torch.empty(9)  # allocated by a thread
        for _ in range(400):
            here = torch.empty(9)  # allocated in a loop
            exec(compile("torch.empty(2)", "<thread>", "exec"), {"torch": torch})
        if born(watched, here) != (line_of("allocated in a loop"), "allocate"):
            wrong.append(here)

    def train():
        layer = torch.nn.Linear(64, 64)
        for _ in range(60):
            layer.zero_grad()
            layer(torch.ones(32, 64)).sum().backward()  # trained
        if born(watched, layer.weight.grad) != (line_of("trained"), "train"):
            wrong.append(layer)

    workers = [threading.Thread(target=work) for work in (allocate, allocate, train, train)]
    hogs = [threading.Thread(target=hog, daemon=True)]
    for thread in hogs + workers:
        thread.start()
    for thread in workers:
        thread.join(60)
    stop.set()
    assert [thread.is_alive() for thread in workers] == [False] * 4
    assert wrong == []


@pytest.mark.filterwarnings("ignore:.*torch.jit")
def test_allocator_never_waits_for_the_gil(watched):
    @torch.jit.script
    def many(data: torch.Tensor, count: int):
        kept = [data]
        for _ in range(count):
            kept.append(data + 1)  # noqa: PERF401
        return kept

    source = torch.ones(10)
    many(source, 2)
    kept = []
    ready = threading.Event()
    gc.collect()

    def work():
        ready.set()
        # the whole loop runs without the GIL
        kept.extend(many(source, 30_000))  # scripted

    base = watched.allocated()
    interval = sys.getswitchinterval()
    # who has the GIL keeps it, unless it waits
    sys.setswitchinterval(1000)
    try:
        thread = threading.Thread(target=work)
        thread.start()
        ready.wait()
        deadline = time.monotonic() + 60
        while watched.allocated() - base < 30_000 * 40 and time.monotonic() < deadline:
            pass
        # all were allocated, and nobody could take them: that needs the GIL
        assert watched.allocated() - base >= 30_000 * 40
        assert kept == []
    finally:
        sys.setswitchinterval(interval)
    thread.join()
    # the numbers of the loop, tensors while they are added, are gone
    assert watched.allocated() - base == 30_000 * 40
    assert born(watched, kept[-1]) == (line_of("scripted"), "work")


def test_births_after_fork(watched):
    stop = threading.Event()

    def work():
        while not stop.is_set():
            torch.empty(100)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for _ in range(10):
            child = os.fork()
            if child == 0:
                os._exit(_in_child(watched))
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        thread.join()


def _in_child(allocator):
    # a child that hangs is ended, and seen
    signal.alarm(100)
    try:
        return 0 if born(allocator, make()) == (line_of("in make"), "make") else 1
    except BaseException:
        return 2


def test_none_are_noted_once_the_exit_has_begun():
    # it frees the frames of the threads that still run
    code = """
import atexit, torch
from array import array
from tensorlens.frameworks.torch import Adapter
from tensorlens.native import NativeUnavailable
def late():
    kept = torch.empty(10)
    print(*allocator.births(array("Q", [kept.data_ptr()]))[0])
    try:
        allocator.watch_births()
    except NativeUnavailable as error:
        print(error)
atexit.register(late)
allocator = Adapter().cpu_counter()
allocator.watch_births()
kept = torch.empty(10)
print(*allocator.births(array("Q", [kept.data_ptr()]))[0])
"""
    result = subprocess.run(
        [*warm.python(ends=True), "-c", code],
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.splitlines() == [
        "0",
        "-1",
        "birth lines are not known: the program is at its exit",
    ]


def test_call_of_a_class_that_python_specialised_is_no_line(watched):
    class Net:
        def __init__(self):
            self.layer = torch.nn.Linear(4, 4)  # a layer of the class

    # from Python 3.12 on a class that was called often has a frame of its own below __init__
    for _ in range(50):
        net = Net()
    assert born(watched, net.layer.weight) == (line_of("a layer of the class"), "__init__")
