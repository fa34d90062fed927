"""Leaks on a real GPU: skipped, with the reason, where there is none."""

import inspect

import pytest

torch = pytest.importorskip("torch")
if not torch.cuda.is_available():
    pytest.skip("no CUDA or ROCm device here", allow_module_level=True)

import tensorlens  # noqa: E402

CUDA = "cuda:0"


@pytest.fixture(autouse=True)
def used():
    torch.ones(1, device=CUDA)
    torch.cuda.synchronize()


def line_of(function, mark):
    source, first = inspect.getsourcelines(function)
    return next(first + at for at, line in enumerate(source) if line.rstrip().endswith(mark))


def model():
    layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
    return torch.nn.Sequential(*layers).to(CUDA)


def test_every_block_is_seen():
    report = tensorlens.find_leaks(lambda: torch.zeros(100, device=CUDA).sum().item())
    assert (report.leaks, report.notes) == ((), ())


def test_tensors_that_are_kept():
    kept = []

    def step():
        kept.append(torch.zeros(300, device=CUDA))  # KEPT

    report = tensorlens.find_leaks(step)
    (leak,) = report.leaks
    assert leak.born.lineno == line_of(test_tensors_that_are_kept, "# KEPT")
    assert (leak.device, leak.tensors_per_step, leak.bytes_per_step) == (CUDA, 1, 1200)
    assert "kept" in leak.path and leak.advice.startswith("clear ")
    assert report.notes == ()


def test_losses_with_their_graphs():
    losses, net = [], model()

    def step():
        losses.append(net(torch.randn(32, 64, device=CUDA)).square().mean())  # LOSS

    (leak,) = tensorlens.find_leaks(step).leaks
    assert leak.born.lineno == line_of(test_losses_with_their_graphs, "# LOSS")
    # the batch, the output of ReLU and that of the net, which square() saved
    assert leak.example.below == 32 * 64 * 4 + 32 * 128 * 4 + 32 * 10 * 4
    assert leak.bytes_per_step == 4 + leak.example.below


@pytest.mark.parametrize("to_none", [False, True])
def test_a_training_loop(to_none):
    net = model()
    optimizer = torch.optim.Adam(net.parameters())

    def step():
        optimizer.zero_grad(set_to_none=to_none)
        net(torch.randn(32, 64, device=CUDA)).square().mean().backward()
        optimizer.step()

    report = tensorlens.find_leaks(step)
    assert (report.leaks, report.notes) == ((), ())


def test_gradients_that_are_kept_are_of_the_line_of_backward():
    kept, net = [], model()

    def step():
        net.zero_grad(set_to_none=True)
        loss = net(torch.randn(32, 64, device=CUDA)).square().mean()
        loss.backward()  # BACKWARD
        kept.append([each.grad for each in net.parameters()])

    leaks = tensorlens.find_leaks(step).leaks
    line = line_of(test_gradients_that_are_kept_are_of_the_line_of_backward, "# BACKWARD")
    assert {leak.born.lineno for leak in leaks} == {line}
    sizes = [each.numel() * 4 for each in net.parameters()]
    assert sum(leak.bytes_per_step for leak in leaks) == sum(sizes)
    assert sum(leak.tensors_per_step for leak in leaks) == len(sizes)


def test_the_programs_own_history_is_left_on():
    kept = []
    torch.cuda.memory._record_memory_history()
    try:
        report = tensorlens.find_leaks(lambda: kept.append(torch.zeros(256, device=CUDA)))
        assert torch._C._cuda_isHistoryEnabled()
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
    assert report.leaks[0].bytes_per_step == 1024


def test_the_host_and_the_device_at_once():
    kept = []

    def step():
        kept.append(torch.zeros(128))
        kept.append(torch.zeros(256, device=CUDA))

    leaks = tensorlens.find_leaks(step).leaks
    assert [(leak.device, leak.bytes_per_step) for leak in leaks] == [(CUDA, 1024), ("cpu", 512)]
