"""An estimate is the same whatever threads do meanwhile; bytes by hand."""

import threading

import pytest
import torch

import tensorlens
from tensorlens.planning import processes
from tests import warm

MIB = 1 << 20
CUBLAS = 8_519_680
"""A workspace for each thread that multiplies matrices (``:4096:2:16:8``)."""


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setattr(processes, "interpreter", lambda: warm.python(device=True))


def kept_graph():
    weight = torch.randn(MIB, device="cuda", requires_grad=True)
    result = (weight * 2).sin()
    gradient = torch.ones_like(result)
    over, done = threading.Event(), []

    def spin():
        while not over.is_set():
            sum(range(200))

    for _ in range(3):
        threading.Thread(target=spin, daemon=True).start()

    def step():
        torch.autograd.grad(result, weight, gradient, retain_graph=True)
        torch.empty(3 * MIB, device="cuda")
        done.append(None)
        if len(done) == 8:
            over.set()

    return step


def test_unreferenced_gradients_are_freed_before_the_next_line():
    estimate = tensorlens.estimate(kept_graph, card="a100", steps=8)
    # weight, its double, the result and its gradient, of 4 MiB each; then 12 MiB more, when the
    # gradient of the weight is gone
    assert [step.peak_allocated for step in estimate.steps] == [16 * MIB, *[28 * MIB] * 8]
    assert {step.allocated for step in estimate.steps} == {16 * MIB}


def test_backward_has_a_cublas_handle_of_its_own():
    def make():
        weight = torch.randn(512, 512, device="cuda", requires_grad=True)
        x = torch.randn(512, 512, device="cuda")
        return lambda: (x @ weight).sum().backward()

    def make_without_backward():
        weight = torch.randn(512, 512, device="cuda")
        return lambda: weight @ weight

    # weight, x and the gradient of weight are 1 MiB each
    assert tensorlens.estimate(make, card="a100").steps[-1].allocated == 3 * MIB + 2 * CUBLAS
    estimate = tensorlens.estimate(make_without_backward, card="a100")
    assert estimate.steps[-1].allocated == MIB + CUBLAS
