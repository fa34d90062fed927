"""Programs of users, estimated from end to end; bytes derived by hand."""

import inspect
import sys
import textwrap

import pytest
import torch

import tensorlens
from tensorlens.errors import UsageError
from tensorlens.planning import ProgramFailed, processes
from tests import warm

WEIGHTS = 8_000_000 + 8_192 + 80_384 + 512
"""1000 x 2000 and 2000 x 10 floats with their biases, each rounded up to 512 bytes."""


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setattr(processes, "interpreter", lambda: warm.python(device=True))


def make(batch=32, optimizer="Adam"):
    net = torch.nn.Sequential(
        torch.nn.Linear(1000, 2000), torch.nn.ReLU(), torch.nn.Linear(2000, 10)
    ).cuda()
    stepping = getattr(torch.optim, optimizer)(net.parameters())
    images, labels = torch.randn(batch, 1000), torch.randint(0, 10, (batch,))

    def step():
        stepping.zero_grad()
        loss = torch.nn.functional.cross_entropy(net(images.cuda()), labels.cuda())
        loss.backward()
        stepping.step()

    return step


@pytest.fixture(scope="module")
def adam():
    # from beginning to end as a user has it
    return tensorlens.estimate(make, card="a100")


def test_an_adam_step(adam):
    assert adam.device == "cuda:0"
    assert [each.name for each in adam.steps] == ["setup", "step 1", "step 2"]
    setup, first, second = adam.steps
    assert setup.peak_allocated == setup.allocated == WEIGHTS
    # 20 MiB for the large ones, 2 MiB for the small ones
    assert setup.reserved == 22 << 20
    # weights, gradients, two moments, and the square root of one of them
    # and cuBLAS's workspaces, one for the thread of the autograd engine
    scratch = 2 * 8_519_680
    assert adam.peak_allocated == 5 * WEIGHTS + 512 + scratch
    # the loss is gone with the step
    assert first.allocated == second.allocated == 4 * WEIGHTS + scratch


def test_peak_by_role_by_hand(adam):
    roles = adam.by_role
    assert sum(roles.values()) == adam.peak_allocated
    assert roles["parameter"] == roles["gradient"] == WEIGHTS
    assert roles["optimizer"] == 2 * WEIGHTS
    assert roles["temporary"] == WEIGHTS
    assert sum(adam.by_line.values()) == adam.peak_allocated
    assert sum(adam.by_module.values()) == adam.peak_allocated
    names = {each.name for each in adam.peak.tensors}
    assert {"0.weight", "0.weight.grad", "Adam.0.weight.exp_avg", "Adam.2.bias.exp_avg_sq"} <= names


def test_bounds_and_the_batch(adam):
    assert adam.lower <= adam.peak_reserved <= adam.upper
    assert adam.batch == 32
    assert adam.fits("1 GiB") and not adam.fits("40 MiB")


def make_inference():
    layer = torch.nn.Linear(1024, 1024, bias=False, device="cuda")

    def step():
        return layer.weight.sum()

    return step


def make_resized():
    kept = torch.empty(256, device="cuda")

    def step():
        small = torch.empty(128, device="cuda")
        kept.untyped_storage().resize_(1 << 20)  # resized
        return small

    return step


def test_a_storage_that_the_program_resizes_has_its_line():
    estimate = tensorlens.estimate(make_resized, card="a100", steps=1)
    source, first = inspect.getsourcelines(make_resized)
    (resized,) = [first + row for row, text in enumerate(source) if "# resized" in text]
    assert {line.lineno: nbytes for line, nbytes in estimate.by_line.items()}[resized] == 1 << 20


def test_weights_of_a_model_that_never_trains_are_parameters():
    estimate = tensorlens.estimate(make_inference, card="a100", steps=1)
    assert estimate.by_role["parameter"] == 1024 * 1024 * 4


def test_inputs_of_the_estimate():
    estimate = tensorlens.estimate(make, arguments={"batch": 4096, "optimizer": "SGD"})
    inputs = [label for label in estimate.recording.log.labels if label.role == "input"]
    found = {(label.name, label.dtype, label.shape) for label in inputs}
    assert ("images", "float32", (4096, 1000)) in found
    assert ("labels", "int64", (4096,)) in found
    # a batch of 1000 floats each
    assert estimate.by_role["input"] >= 4096 * 1000 * 4


def test_estimate_of_host_memory():
    def make_on_host():
        net = torch.nn.Linear(100, 7)

        def step():
            net(torch.ones(3, 100)).sum().backward()

        return step

    estimate = tensorlens.estimate(make_on_host, device="cpu", steps=1)
    setup, _ = estimate.steps
    assert setup.allocated == 4 * (700 + 7)
    assert estimate.card is None
    assert estimate.peak_reserved == estimate.peak_allocated


def test_default_device_is_the_card():
    def make_anywhere():
        net = torch.nn.Linear(256, 64, bias=False)
        return lambda: net(torch.ones(2, 256)).sum().backward()

    estimate = tensorlens.estimate(make_anywhere)
    assert estimate.steps[0].allocated == 256 * 64 * 4
    assert "set_default_device" in estimate.warnings[0].text


def test_a_closure_over_real_tensors():
    weight = torch.nn.Parameter(torch.ones(512, 256))
    data = torch.ones(64, 512)

    def make_closure():
        on_card = torch.nn.Parameter(weight.cuda())
        return lambda: (data.cuda() @ on_card).sum().backward()

    estimate = tensorlens.estimate(make_closure)
    assert estimate.steps[0].allocated == 512 * 256 * 4


@pytest.fixture
def train(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(
        textwrap.dedent("""
        import sys
        import torch

        def make(width=256):
            net = torch.nn.Linear(width, 64, bias=False, device="cuda")
            optimizer = torch.optim.SGD(net.parameters(), momentum=0.9)
            def step():
                optimizer.zero_grad()
                net(torch.ones(2, width, device="cuda")).sum().backward()
                optimizer.step()
            return step

        if __name__ == "__main__":
            step = make(int(sys.argv[1]))
            while True:
                step()
        """)
    )
    return path


def test_a_function_of_a_file(train):
    estimate = tensorlens.estimate(f"{train}:make", arguments={"width": 512})
    assert estimate.steps[0].allocated == 512 * 64 * 4


def test_a_function_of_a_module(train, monkeypatch):
    monkeypatch.syspath_prepend(str(train.parent))
    estimate = tensorlens.estimate("train:make")
    assert estimate.steps[0].allocated == 256 * 64 * 4


def test_a_script_ends_with_its_last_step(train):
    estimate = tensorlens.estimate(str(train), script_args=["1024"], steps=3, card="a100")
    assert [each.name for each in estimate.steps][-3:] == ["step 1", "step 2", "step 3"]
    weight = 1024 * 64 * 4
    # the weight, its gradient and its momentum, when the optimizer has stepped
    # and cuBLAS's workspaces, one for the thread of the autograd engine
    assert estimate.steps[-1].allocated == 3 * weight + 2 * 8_519_680


def test_whole_program_function():
    def whole():
        step = make(optimizer="SGD")
        for _ in range(100):
            step()

    estimate = tensorlens.estimate(whole, steps=2)
    assert [each.name for each in estimate.steps][-2:] == ["step 1", "step 2"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (3, "give a function"),
        ("no_such_file.py", "no file"),
        ("no_such_module:make", "no module 'no_such_module'"),
        ("math:no_such_function", "no 'no_such_function'"),
    ],
)
def test_wrong_targets_are_refused(given, says):
    with pytest.raises(tensorlens.TensorlensError, match=says):
        tensorlens.estimate(given)


def test_wrong_options_are_refused():
    for options in (
        {"device": "tpu"},
        {"steps": 0},
        {"world_size": 0},
        {"capacity": "much"},
        {"card": "no such card"},
        {"settings": "no_such_option"},
        {"device": 0},
        {"card": 4090},
        {"settings": 1},
        {"arguments": ["batch"]},
        {"arguments": {1: 2}},
    ):
        with pytest.raises(UsageError):
            tensorlens.estimate(make, **options)
    for lowest in (0, "8", 1.5):
        with pytest.raises(UsageError, match="1 <= lowest"):
            tensorlens.max_batch(make, "24 GiB", lowest=lowest)


def test_failing_program_names_its_line():
    def make_wrong():
        def step():
            raise ValueError("this is wrong")

        return step

    with pytest.raises(ProgramFailed, match="ValueError: this is wrong") as caught:
        tensorlens.estimate(make_wrong)
    assert 'raise ValueError("this is wrong")' in caught.value.details
    assert "tensorlens" + "/" not in caught.value.details.replace(str(__file__), "")


def test_a_program_that_returns_no_step():
    with pytest.raises(UsageError, match="return a function that runs one step") as caught:
        tensorlens.estimate(lambda: 3)
    assert "int" in str(caught.value)


def test_a_program_that_returns_its_model_returns_no_step():
    with pytest.raises(UsageError, match="returned a Linear: return a function that runs one step"):
        tensorlens.estimate(lambda: torch.nn.Linear(2, 2))


def test_a_program_that_ends_its_process():
    def make_exit():
        import os

        os._exit(7)

    with pytest.raises(ProgramFailed, match="exit code 7"):
        tensorlens.estimate(make_exit)


def make_rows(batch):
    weight = torch.zeros(1 << 20, device="cuda")

    def step():
        rows = torch.zeros(batch, 1 << 20, device="cuda")
        rows += weight

    return step


def test_the_largest_batch():
    # 4 MiB for the weight, from a segment of 20 MiB, and 4 MiB a row
    probe = tensorlens.estimate(make_rows, arguments={"batch": 100})
    assert probe.peak_allocated == 404 << 20
    found = tensorlens.max_batch(make_rows, probe.needed.point)
    assert found == 100
    assert found.estimate.peak_allocated == 404 << 20
    assert tensorlens.max_batch(make_rows, probe.needed.point, highest=7) == 7
    assert tensorlens.max_batch(make_rows, "1 MiB") == 0


def test_scaling_is_a_formula():
    found = tensorlens.scaling(make_rows, values=(10, 20, 30))
    assert found.formula == "4.00 MiB + 4.00 MiB x batch"
    assert found.at(1000) == 4004 << 20


def test_the_asking_process_imports_no_framework(train):
    import subprocess

    code = (
        "import sys, tensorlens\n"
        "from tensorlens.planning import processes\n"
        f"processes.interpreter = lambda: {processes.interpreter()}\n"
        f"tensorlens.estimate({str(train) + ':make'!r})\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_arguments_that_cannot_go():
    with pytest.raises(UsageError, match="cannot go to another process"):
        tensorlens.estimate(make, arguments={"batch": (each for each in ())})


def test_a_program_that_writes_much():
    def make_loud():
        import os

        os.write(1, b"x" * 1_000_000)
        os.write(2, b"x" * 1_000_000)
        print("y" * 1_000_000)
        return make(optimizer="SGD")

    assert tensorlens.estimate(make_loud).steps[0].allocated == WEIGHTS


def test_missing_fake_device_is_one_line(monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "interpreter", warm.python)
    monkeypatch.setenv("CXX", "false")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(UsageError, match=r"false.*estimate it for the CPU"):
        tensorlens.estimate(make, card="a100")


def test_sparse_gradients_are_their_parts():
    def make_sparse():
        table = torch.nn.Embedding(10_000, 64, sparse=True).cuda()
        words = torch.randint(0, 10_000, (32, 16), device="cuda")
        return lambda: table(words).square().sum().backward()

    estimate = tensorlens.estimate(make_sparse, steps=1)
    _, step = estimate.steps
    # the table, the words, and a gradient of 512 rows: where they are, and their values
    assert step.allocated == 2_560_000 + 4096 + 512 * 8 + 512 * 64 * 4


def test_program_arguments_reach_the_function():
    def make_parsed():
        import argparse

        parser = argparse.ArgumentParser()
        parser.add_argument("--width", type=int, default=64)
        width = parser.parse_args().width
        weight = torch.zeros(width, 512, device="cuda")
        return lambda: weight.add_(1)

    assert tensorlens.estimate(make_parsed).peak_allocated == 64 * 512 * 4
    found = tensorlens.estimate(make_parsed, script_args=["--width", "128"])
    assert found.peak_allocated == 128 * 512 * 4


def test_a_script_that_exits(tmp_path):
    path = tmp_path / "short.py"
    path.write_text("import sys, torch\nx = torch.zeros(1024, device='cuda')\nsys.exit(0)\n")
    assert tensorlens.estimate(str(path)).peak_allocated == 4096
    path.write_text("import sys\nsys.exit('no data')\n")
    with pytest.raises(UsageError, match="no data"):
        tensorlens.estimate(str(path))


def test_a_program_that_catches_everything():
    def whole():
        step = make(optimizer="SGD")
        for _ in range(20):
            try:
                step()
            except:  # noqa: E722
                pass

    estimate = tensorlens.estimate(whole, steps=2)
    assert [each.name for each in estimate.steps][-2:] == ["step 1", "step 2"]
    assert any("ended after 2 steps" in each.text for each in estimate.warnings)


def test_growth_over_steps():
    def make_growing():
        kept = []
        return lambda: kept.append(torch.zeros(1 << 20, device="cuda"))

    estimate = tensorlens.estimate(make_growing)
    assert any("step 2 leaves 4.00 MiB more" in each.text for each in estimate.warnings)


def test_a_capacity_that_the_card_does_not_have():
    with pytest.raises(UsageError, match="has 14"):
        tensorlens.estimate(make, card="t4", capacity="40 GiB")
    with pytest.raises(UsageError, match="needs a capacity"):
        tensorlens.max_batch(make, None)


def test_weights_that_are_converted_are_no_inputs():
    def make_half():
        net = torch.nn.Linear(4096, 16).cuda().bfloat16()
        return lambda: (
            net(torch.ones(3, 4096, device="cuda", dtype=torch.bfloat16)).sum().backward()
        )

    assert tensorlens.estimate(make_half).batch == 3


def test_workspaces_are_of_no_module_and_no_line():
    def make_step():
        layers = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
        model = torch.nn.Sequential(*layers).cuda()

        def step():
            model(torch.ones(8, 64, device="cuda")).sum().backward()

        return step

    found = tensorlens.estimate(make_step, card="a100-80gb")
    # one of the thread that runs forward, one of that of backward; blocks are multiples of 512
    workspaces = 2 * 8_519_680
    batch, loss, gradient = 8 * 64 * 4, 512, 512
    assert found.by_module[None] == workspaces + batch + loss + gradient
    assert {line.filename for line in found.by_line if line is not None} == {__file__}
    assert found.by_line[None] == workspaces
    assert "  cuBLAS workspace (library)\n" in str(found)


AT_MODULE_LEVEL = """
import torch

library = torch.library.Library("module_level", "DEF")  # torch refuses a second one
layer = torch.nn.Linear(64, 64, bias=False, device="cuda")
optimizer = torch.optim.SGD(layer.parameters(), momentum=0.9)
batch = torch.ones(8, 64, device="cuda")


def make_step():
    def step():
        layer(batch).sum().backward()
        optimizer.step()

    return step
"""


def test_a_model_at_module_level_is_seen_each_time(tmp_path, monkeypatch):
    (tmp_path / "module_level.py").write_text(AT_MODULE_LEVEL)
    monkeypatch.syspath_prepend(tmp_path)
    for program in ("module_level:make_step", str(tmp_path / "module_level.py:make_step")):
        for _ in range(2):
            tensors = tensorlens.estimate(program, card="a100", steps=2).peak.tensors
            of_layer = {each.name: each.nbytes for each in tensors if "weight" in each.name}
            assert set(of_layer) == {"weight", "weight.grad", "SGD.weight.momentum_buffer"}
            assert set(of_layer.values()) == {64 * 64 * 4}


def make_scaled_rows():
    table = torch.zeros(100, 64, device="cuda")
    rows, values = torch.arange(10, device="cuda"), torch.ones(10, 64, device="cuda")

    def step():
        torch.index_add(table, 0, rows, values, alpha=2)

    return step


def test_rows_are_added_with_a_factor():
    setup, first = tensorlens.estimate(make_scaled_rows, card="a100", steps=1).steps
    assert setup.allocated == 25_600 + 2_560 + 512
    assert first.peak_allocated == setup.allocated + 25_600


def test_a_program_treats_its_streams_and_cuda_as_it_may(tmp_path):
    program = tmp_path / "streams.py"
    program.write_text(
        textwrap.dedent(
            """
            import faulthandler, sys, torch
            sys.stdout.reconfigure(line_buffering=True)
            sys.stdout.buffer.write(b"x")
            faulthandler.enable()

            def make_step():
                x, pool = torch.zeros(256, device="cuda"), torch.cuda.graph_pool_handle()
                torch.cuda.reset_accumulated_memory_stats()
                torch.cuda.reset_peak_host_memory_stats()
                assert torch.cuda.host_memory_stats() == {}

                def step():
                    with torch.cuda.graph(torch.cuda.CUDAGraph(), pool=pool):
                        x.add_(1)

                return step
            """
        )
    )
    found = tensorlens.estimate(f"{program}:make_step")
    assert found.peak_allocated == 1024
    assert any("CUDA graph was not captured" in str(each) for each in found.warnings)


def test_output_of_a_failed_program_is_shown(tmp_path):
    program = tmp_path / "failing.py"
    program.write_text("def make_step():\n    print('almost')\n    raise ValueError(1)\n")
    with pytest.raises(ProgramFailed) as raised:
        tensorlens.estimate(f"{program}:make_step")
    assert "it wrote last:\nalmost" in raised.value.failure.details


SCRIPT = """
import torch
net = torch.nn.Linear(10, 10).cuda()
optimizer = torch.optim.SGD(net.parameters())
for _ in range(2):
    net(torch.zeros(4, 10).cuda()).sum().backward()
    optimizer.step()
"""


def test_a_module_is_run_as_a_program(tmp_path, monkeypatch):
    package = tmp_path / "trained"
    package.mkdir()
    (package / "nets.py").write_text(
        'import torch\nlayer = torch.nn.Linear(64, 64, bias=False, device="cuda")\n'
    )
    (package / "train.py").write_text(
        "import sys, torch\n"
        "from .nets import layer\n"
        "assert sys.argv == [__file__, '8'] and __name__ == '__main__'\n"
        "optimizer = torch.optim.SGD(layer.parameters())\n"
        "while True:\n"
        "    layer(torch.ones(int(sys.argv[1]), 64, device='cuda')).sum().backward()\n"
        "    optimizer.step()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for _ in range(2):
        found = tensorlens.estimate("trained.train", script_args=["8"], card="a100")
        # the weight and its gradient, and a workspace of cuBLAS for each thread
        assert found.steps[-1].allocated == 2 * 64 * 64 * 4 + 2 * 8_519_680


def test_a_script_takes_no_batch_and_no_arguments(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    for ask in (
        lambda: tensorlens.max_batch(str(script), "4 GiB", highest=2),
        lambda: tensorlens.scaling(str(script)),
        lambda: tensorlens.estimate(str(script), arguments={"hidden": 4}),
    ):
        with pytest.raises(UsageError, match=r"is a script, which takes no (batch|hidden)"):
            ask()
    found = tensorlens.compare(
        str(script), {"a": {}}, how="estimated", capacity="4 GiB", highest=1000
    )
    assert found["a"].largest_batch is None
    assert found["a"].missing["largest_batch"] == "a script takes no batch"
    with pytest.raises(UsageError, match=r"batch=4: .* is a script, which takes none"):
        tensorlens.compare(str(script), {"a": {}}, how="estimated", batch=4)


def test_files_that_the_program_opened_and_did_not_come_to_write_are_as_before(tmp_path):
    results = tmp_path / "results.pkl"
    results.write_bytes(b"of a week")
    script = tmp_path / "script.py"
    script.write_text(f"results = open({str(results)!r}, 'wb')\n" + SCRIPT.replace("(2)", "(9)"))
    tensorlens.estimate(str(script))
    assert results.read_bytes() == b"of a week"
    assert {each.name for each in tmp_path.iterdir()} <= {"results.pkl", "script.py", "__pycache__"}


def test_a_batch_that_surely_does_not_fit_needs_more_than_there_is():
    found = tensorlens.max_batch(make, "700 MiB", surely=True, highest=64)
    assert found == 0
    assert found.estimate.largest.next_needed == found.estimate.needed.high > 700 << 20


def test_async_step_is_refused():
    async def step():
        pass

    async def make_async():
        return make()

    with pytest.raises(UsageError, match="returned a coroutine function"):
        tensorlens.estimate(lambda: step)
    with pytest.raises(UsageError, match="make_step is a coroutine function"):
        tensorlens.estimate(make_async)


def test_values_and_words_are_checked():
    with pytest.raises(UsageError, match="values=8: give three whole numbers"):
        tensorlens.scaling(make, values=8)
    with pytest.raises(UsageError, match="script_args='--lr 1': give a list of words"):
        tensorlens.estimate("train.py", script_args="--lr 1")


def test_values_may_be_of_numpy():
    numpy = pytest.importorskip("numpy")
    found = tensorlens.scaling(make, "batch", numpy.array([8, 32, 128]))
    assert {8, 32, 128} <= {*found.estimates}
    assert all(type(each) is int for each in found.estimates)
