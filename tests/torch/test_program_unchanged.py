"""A profiled program computes, prints and fails as one that never heard of tensorlens."""

import functools
import hashlib

import numpy
import pytest
import torch
from line_figures import run
from torch import nn

import tensorlens
from tensorlens.errors import DeviceError, ProfileError, UsageError

TRAINING = """
import hashlib, random, sys
import torch
from torch import nn
{imports}

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2))
        self.head = nn.Linear(4 * 6 * 6, 5)

    {decorator}
    def forward(self, x):
        hidden = self.layers(x)
        return self.head(hidden)

{decorator}
def batches(count):
    for _ in range(count):
        yield torch.randn(16, 3, 8, 8), torch.randint(0, 5, (16,))

{decorator}
def step(net, optimizer, x, y):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(net(x), y)
    loss.backward()
    optimizer.step()
    return loss

{decorator}
def train(steps):
    torch.manual_seed(0)
    random.seed(0)
    net = Net()
    optimizer = torch.optim.Adam(net.parameters())
    for x, y in batches(steps):
        loss = step(net, optimizer, x, y)
    return net, loss

net, loss = train(6)
digest = hashlib.sha256()
for tensor in net.state_dict().values():
    digest.update(tensor.numpy().tobytes())
digest.update(torch.get_rng_state().numpy().tobytes())
digest.update(repr(random.getstate()).encode())
print(digest.hexdigest(), loss.item().hex(), torch.get_num_threads(), torch.is_grad_enabled())
print(sys.gettrace(), sys.getrecursionlimit(), step.__name__, step.__module__)
print(Net.forward.__qualname__)
sys.stdout.flush()
{decorator}
def fail(x):
    return x @ torch.ones(2)
fail(torch.ones(3))
"""


def outcome(imports="", decorator="", **environment):
    """Return what the program wrote besides tables, and the last line of its traceback."""
    result = run(TRAINING.format(imports=imports, decorator=decorator), status=1, **environment)
    own, _, table = result.stdout.partition("Memory per line")
    frames = [line for line in result.stderr.splitlines() if "<string>" in line]
    return own, result.stderr.splitlines()[-1], len(frames), bool(table)


def test_training_is_the_same_bit_for_bit():
    plain = outcome()
    off = outcome("import tensorlens", "@tensorlens.profile", TENSORLENS="0")
    on = outcome("import tensorlens", "@tensorlens.profile")
    assert plain[1].startswith("RuntimeError: ")
    assert off == plain
    assert on == (*plain[:3], True)


def test_switched_off_it_gives_back_what_it_was_given():
    code = """
    import tensorlens
    def f(): return 1
    class Net: pass
    net = Net()
    assert tensorlens.profile(f) is f
    assert tensorlens.profile(every=3)(f) is f
    assert tensorlens.profile(devices=("cuda:99",))(f) is f
    assert tensorlens.profile(len) is len
    assert tensorlens.profile(net) is net
    assert tensorlens.profile_every(2)(f) is f
    with tensorlens.profile:
        pass
    with tensorlens.profile(every=2):
        pass
    import sys
    print(sorted({"torch", "numpy", "tabulate"} & set(sys.modules)))
    """
    for value in ("0", "false", "off", "no", " OFF "):
        result = run(code, TENSORLENS=value)
        assert (result.stdout, result.stderr) == ("[]\n", "")


def test_importing_it_imports_nothing_large():
    code = """
    import sys
    import tensorlens
    heavy = {"torch", "line_profiler", "numpy", "pandas", "tensorflow", "jinja2", "tabulate"}
    print(sorted(heavy & set(sys.modules)))
    tensorlens.LineProfiler, tensorlens.profile
    print(sorted({"torch", "numpy", "tensorflow"} & set(sys.modules)))
    """
    result = run(code)
    assert (result.stdout, result.stderr) == ("[]\n[]\n", "")


def fingerprint(tensor):
    return hashlib.sha256(tensor.detach().numpy().tobytes()).hexdigest()


def test_gradients_and_their_graph_are_the_same():
    def step(x):
        return (x.sin() * x.cos()).pow(3).sum()

    def gradients(function):
        torch.manual_seed(1)
        x = torch.randn(1000, requires_grad=True)
        y = function(x)
        y.backward()
        return fingerprint(x.grad), y.grad_fn.name(), fingerprint(torch.get_rng_state())

    profiler = tensorlens.LineProfiler()
    assert gradients(profiler(step)) == gradients(step)
    plain = gradients(step)
    with tensorlens.LineProfiler(step):
        assert gradients(step) == plain


def test_exceptions_keep_their_identity_and_cause():
    class Trouble(Exception):
        pass

    first, cause = Trouble("one"), KeyError("two")

    def fail():
        try:
            raise cause
        except KeyError as error:
            raise first from error

    with pytest.raises(Trouble) as caught:
        tensorlens.LineProfiler()(fail)()
    assert caught.value is first
    assert caught.value.__cause__ is cause
    assert caught.value.__context__ is cause


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, x):
        return x


class Callable:
    def __call__(self):
        return 1


def function_of_tests(x):
    return x


class TestBadInput:
    """One line that says what to do, as the right exception."""

    NATIVE = "cannot profile {}: it is built in and has no Python lines; profile its caller"
    OBJECT = "cannot profile an object of {}: give a function, a method or a module"

    @pytest.mark.parametrize(
        ("item", "text"),
        [
            (len, NATIVE.format("len")),
            (
                torch.add,
                NATIVE.format("_VariableFunctionsClass.add"),
            ),
            (torch.Tensor.add_, NATIVE.format("TensorBase.add_")),
            (
                Model,
                "cannot profile the class Model: put @profile on its methods "
                "(for example Model.forward)",
            ),
            (
                type("Run", (), {"__init__": fingerprint, "start": fingerprint}),
                "cannot profile the class Run: put @profile on its methods (for example Run.start)",
            ),
            (int, "cannot profile the class int: put @profile on its methods"),
            (3, OBJECT.format("int")),
            (
                torch.ones(2),
                OBJECT.format("Tensor"),
            ),
            (functools.partial(len, []), NATIVE.format("len")),
            (hashlib, OBJECT.format("module")),
            (
                numpy.add,
                "cannot profile an object of ufunc: give a function, a method or a module, "
                "or ufunc.__call__",
            ),
        ],
        # without addresses, so that each process that runs tests has the same names
        ids=lambda value: getattr(value, "__name__", str(value)),
    )
    @pytest.mark.parametrize(
        "use",
        [tensorlens.LineProfiler, lambda item: tensorlens.LineProfiler()(item)],
        ids=["given", "wrapped"],
    )
    def test_no_lines_to_profile(self, use, item, text):
        with pytest.raises(ProfileError) as caught:
            use(item)
        assert str(caught.value) == text
        assert isinstance(caught.value, TypeError)

    def test_an_object_with_a_call_of_its_own(self):
        with pytest.raises(ProfileError) as caught:
            tensorlens.LineProfiler()(Callable())
        assert str(caught.value) == (
            "cannot profile an object of Callable: give a function, a method or a module, "
            "or Callable.__call__"
        )
        with tensorlens.LineProfiler(Callable()) as profiler:
            Callable()()
        assert profiler.result().functions[0].qualname == "Callable.__call__"

    def test_a_lambda_without_source(self):
        code = """
        import tensorlens
        double = tensorlens.profile(eval("lambda x: 2 * x"))
        print(double(4))
        """
        result = run(code)
        lines = result.stdout.splitlines()
        assert (lines[0], result.stderr) == ("8", "")
        assert sum("the source is not available (<string>)" in line for line in lines) == 1
        assert sum(line.startswith("<lambda>  <string>:1") for line in lines) == 1

    @pytest.mark.parametrize(
        ("name", "text"),
        [
            ("cuda:0", f"cuda:0: this torch ({torch.__version__}) is a CPU build"),
            ("cuda:99", f"cuda:99: this torch ({torch.__version__}) is a CPU build"),
            ("gpu0", "gpu0 is no device: write cuda:0"),
            ("/GPU:1", "/GPU:1 is no device: write cuda:1"),
            ("disk", "disk is no device: write cpu, cuda:0, xpu:0 or mps"),
            (-1, "-1 is no device: CUDA devices count from 0"),
        ],
    )
    def test_a_device_that_does_not_exist(self, name, text):
        if torch.cuda.is_available() and "cuda:" in str(name):
            pytest.skip("this machine has it")
        for use in (
            lambda: tensorlens.profile(devices=(name,)),
            lambda: tensorlens.LineProfiler(function_of_tests, devices=(name,)),
            lambda: tensorlens.LineProfiler(devices=name),
            lambda: tensorlens.set_target_gpu(name),
        ):
            with pytest.raises(DeviceError) as caught:
                use()
            assert str(caught.value) == text
            assert isinstance(caught.value, ValueError)

    @pytest.mark.parametrize(
        "devices", ["cpu", torch.device("cpu"), ("cpu",), [torch.device("cpu")]]
    )
    def test_devices_may_be_one_or_several(self, devices):
        assert tensorlens.LineProfiler(devices=devices).devices == ("cpu",)

    @pytest.mark.parametrize("every", [0, -1, "x", 1.5, True, [2]])
    def test_bad_every_is_refused(self, every):
        for use in (
            lambda: tensorlens.profile(every=every),
            lambda: tensorlens.profile_every(every),
        ):
            with pytest.raises(UsageError) as caught:
                use()
            assert str(caught.value) == f"every={every!r}: give a whole number of calls, 1 or more"

    def test_a_stream_that_cannot_be_written(self):
        with pytest.raises(UsageError) as caught:
            tensorlens.profile(stream=5)
        assert str(caught.value) == "stream=5: give an open text file, such as sys.stderr"

    def test_a_function_under_a_cache(self):
        @functools.lru_cache
        def answer():
            return 42

        with pytest.raises(ProfileError) as caught:
            tensorlens.profile(answer)
        assert str(caught.value).endswith(
            "answer through its wrapper: put @profile below the other decorator"
        )

    def test_bad_setting_is_refused(self):
        code = """
        import tensorlens
        try:
            tensorlens.profile(lambda: 0)
        except tensorlens.TensorlensError as error:
            print(type(error).__name__, error)
        """
        result = run(code, TENSORLENS_STREAM="paper")
        assert result.stdout == "UsageError stream = 'paper': give one of stdout, stderr\n"
        assert result.stderr == ""

    def test_a_project_file_that_is_no_such_thing_and_a_folder_that_is_gone(self, tmp_path):
        code = """
        import os, pathlib
        from tensorlens import config
        for text in ("tool = 3", "[tool]\\ntensorlens = 5", "[tool.tensorlens", "[other]", None):
            pathlib.Path("pyproject.toml").write_text(text or "")
            if text is None:
                os.remove("pyproject.toml")
                os.rmdir(os.getcwd())
            assert config.load({}) == config.Config(), text
        """
        code = code.replace("import os,", f"import os; os.chdir({str(tmp_path)!r}); import")
        result = run(code)
        assert (result.stdout, result.stderr) == ("", "")

    def test_an_error_at_the_decorator_ends_with_its_line(self):
        code = """
        import tensorlens
        tensorlens.profile(len)
        """
        result = run(code, status=1)
        assert result.stdout == ""
        assert result.stderr.splitlines()[-1] == (
            "tensorlens.errors.ProfileError: " + self.NATIVE.format("len")
        )
        assert result.stderr.count("Traceback") == 1
