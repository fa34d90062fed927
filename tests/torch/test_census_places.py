"""Wherever in a program a report is asked for, it is right and disturbs nothing."""

import gc
import subprocess
import textwrap
import threading

import pytest
import torch
from census_checks import Since, balanced
from census_models import Mlp
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import tensorlens
from tests import warm

RAN = []


@pytest.fixture(autouse=True)
def tidy():
    yield
    RAN.clear()
    gc.collect()


def names(snapshot):
    return {each.name for each in snapshot.tensors}


class TestPlaces:
    """Reports from wherever a program may be."""

    def check(self, snapshot):
        assert "model.fc1.weight" in names(snapshot)
        return snapshot

    def test_a_deep_graph(self):
        x = torch.zeros(1, requires_grad=True)
        y = x
        for _ in range(1500):
            y = y.tanh()
        since = Since()
        assert since() == {}
        # what each tanh saved is a result of 4 bytes, and x is the first one's input
        counted = [each for each in since.last.tensors if each.alias_of is None]
        saved = [each for each in counted if "TanhBackward0.result" in each.name]
        assert len(saved) == 1499

    def test_under_a_dispatch_mode(self):
        class Mode(TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                RAN.append(func)
                return func(*args, **(kwargs or {}))

        model = Mlp()
        reporter = tensorlens.MemReporter(model=model)
        with Mode():
            assert "fc1.weight" in names(balanced(reporter.snapshot()))
            assert RAN == []
            torch.zeros(1)
            assert len(RAN) == 1

    def test_under_a_function_mode(self):
        class Mode(TorchFunctionMode):
            def __torch_function__(self, func, types, args=(), kwargs=None):
                RAN.append(func)
                return func(*args, **(kwargs or {}))

        model = Mlp()
        reporter = tensorlens.MemReporter(model)
        # results have a node and odd tensors have parts, which are asked for one by one
        kept = [model(model.batch()), torch.eye(3).to_sparse()]
        with Mode():
            balanced(reporter.snapshot())
            assert RAN == []
            torch.zeros(1)
            assert len(RAN) == 1
        assert len(kept) == 2

    def test_under_a_fake_mode(self):
        from torch._subclasses import FakeTensorMode

        model = Mlp()
        since = Since()
        with FakeTensorMode():
            fake = torch.zeros(5)
            assert since(model) == {}
        assert fake.shape == (5,)

    def test_birth_in_inference_mode(self):
        since = Since()
        with torch.inference_mode():
            x = torch.zeros(3)
            assert [each.nbytes for each in since.records()] == [12]
        del x

    def test_birth_in_hooks_and_backward(self):
        class Look(torch.autograd.Function):
            @staticmethod
            def forward(ctx, x):
                return x.clone()

            @staticmethod
            def backward(ctx, grad):
                seen.append(balanced(reporter.snapshot()))
                return grad

        seen = []
        model = Mlp()
        reporter = tensorlens.MemReporter(model=model)
        hidden = Look.apply(model.fc1(torch.ones(2, 20)))
        hidden.register_hook(lambda grad: seen.append(balanced(reporter.snapshot())))
        model.fc1.weight.register_hook(lambda grad: seen.append(balanced(reporter.snapshot())))
        model.fc2(hidden).sum().backward()
        assert len(seen) == 3

    def test_birth_in_compiled_code(self):
        seen = []
        model = Mlp()
        reporter = tensorlens.MemReporter(model)

        def step(x):
            y = model(x)
            seen.append(reporter.snapshot())
            return y.sum()

        x = torch.ones(2, 20)
        expected = step(x)
        assert torch.equal(torch.compile(step, backend="aot_eager")(x), expected)
        torch._dynamo.reset()
        assert len(seen) == 2
        assert all("fc1.weight" in names(each) for each in seen)

    def test_from_several_threads_while_others_train(self):
        stop, errors, taken = threading.Event(), [], []
        reporters = [tensorlens.MemReporter(Mlp()) for _ in range(2)]

        def train():
            model = Mlp()
            adam = torch.optim.Adam(model.parameters())
            while not stop.is_set():
                adam.zero_grad()
                model(torch.ones(2, 20)).sum().backward()
                adam.step()

        def report(reporter):
            for _ in range(2):
                snapshot = reporter.snapshot()
                ledger = snapshot.ledger["cpu"]
                taken.append(ledger.allocated - ledger.named - ledger.unnamed)

        def guarded(function, *args):
            try:
                function(*args)
            except BaseException as error:
                errors.append(error)

        trainers = [threading.Thread(target=guarded, args=(train,)) for _ in range(2)]
        asking = [threading.Thread(target=guarded, args=(report, each)) for each in reporters * 2]
        for thread in trainers + asking:
            thread.start()
        for thread in asking:
            thread.join()
        stop.set()
        for thread in trainers:
            thread.join()
        assert errors == []
        assert taken == [0] * 8

    def test_birth_in_a_collector_callback(self):
        model = Mlp()
        reporter = tensorlens.MemReporter(model)
        seen = []

        def callback(phase, info):
            if not seen:
                seen.append(None)
                seen[0] = reporter.snapshot()

        gc.callbacks.append(callback)
        try:
            gc.collect()
        finally:
            gc.callbacks.remove(callback)
        assert "fc1.weight" in names(seen[0])


def run(program):
    program = textwrap.dedent(program)
    command = [*warm.python(), "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


class TestProcesses:
    def test_after_a_fork_and_at_exit(self):
        done = run(
            """
            import atexit, os, torch, tensorlens
            model = torch.nn.Linear(3, 2)
            reporter = tensorlens.MemReporter(model)
            reporter.snapshot()

            def show(label):
                ledger = reporter.snapshot().ledger["cpu"]
                print(label, ledger.allocated, ledger.named, flush=True)

            child = os.fork()
            if not child:
                more = torch.zeros(10)
                show("child")
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            atexit.register(show, "exit")
            """
        )
        assert done.stderr == ""
        assert done.returncode == 0
        assert done.stdout == "child 72 72\nexit 32 32\n"
