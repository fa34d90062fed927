"""Estimates of programs that copy, build anew, or stay off the card; bytes by hand."""

import copy

import pytest
import torch

import tensorlens
from tensorlens.errors import UsageError
from tensorlens.planning import ProgramFailed, processes
from tests import warm

LINEAR = 64 * 64 * 4 + 64 * 4


@pytest.fixture(autouse=True)
def interpreter(monkeypatch):
    monkeypatch.setattr(processes, "interpreter", lambda: warm.python(device=True))


def growth(make, **arguments):
    """Bytes that the second of two steps holds at its end beyond what was set up."""
    estimate = tensorlens.estimate(make, device="cpu", steps=2, arguments=arguments)
    setup, *steps = estimate.steps
    assert len({step.allocated for step in steps}) == 1
    return steps[-1].allocated - setup.allocated


def scalar():
    kept = torch.tensor(2.5)
    assert copy.deepcopy(kept).item() == 2.5
    # one float
    return [copy.deepcopy(kept)], 4


def plain():
    made = torch.empty(10, 20)
    copied = copy.deepcopy(made)
    assert copied.shape == made.shape
    return [copied], 10 * 20 * 4


def gradient():
    made = torch.empty(100, requires_grad=True)
    made.sum().backward()
    copied = copy.deepcopy(made)
    assert copied.requires_grad and copied.grad.shape == (100,)
    return [copied], 2 * 100 * 4


def parameter():
    made = torch.nn.Parameter(torch.empty(100), requires_grad=False)
    copied = copy.deepcopy(made)
    assert isinstance(copied, torch.nn.Parameter) and not copied.requires_grad
    return [copied], 100 * 4


def module():
    norm = torch.nn.BatchNorm1d(25)
    # weight, bias, running mean and variance of 25 floats; the count is an int64
    return [copy.deepcopy(norm)], 4 * 25 * 4 + 8


def optimizer():
    weight = torch.nn.Parameter(torch.empty(100))
    adam = torch.optim.Adam([weight])
    weight.sum().backward()
    adam.step()
    state = copy.deepcopy(adam.state_dict())
    # two moments, and the step count, one float
    return [state], 2 * 100 * 4 + 4


PROGRAMS = {each.__name__: each for each in (scalar, plain, gradient, parameter, module, optimizer)}


def make_copies(name):
    held = []

    def step():
        kept = PROGRAMS[name]()
        if not held:
            held.append(kept)

    return step


@pytest.mark.parametrize("name", PROGRAMS)
def test_copies_have_storages_of_their_own(name):
    # the program is asked for the bytes itself, where tensors are real
    assert growth(make_copies, name=name) == PROGRAMS[name]()[1]


def test_models_made_in_each_step_go_with_it():
    model = torch.nn.Linear(64, 64)

    def make():
        def step():
            for fresh in (torch.nn.Linear(64, 64), copy.deepcopy(model)):
                fresh(torch.ones(8, 64)).sum().backward()

        return step

    assert growth(make) == 0


def test_model_that_stays_on_the_cpu_is_refused_for_a_card():
    def make():
        model = torch.nn.Linear(64, 64).to("cpu")
        adam = torch.optim.Adam(model.parameters())

        def step():
            model(torch.ones(8, 64).to("cpu")).sum().backward()
            adam.step()

        return step

    with pytest.raises(UsageError, match="keeps its tensors on the CPU: no model is on cuda"):
        tensorlens.estimate(make, card="t4")
    # weights, their gradients and two moments of them, and two step counts
    assert tensorlens.estimate(make, device="cpu").steps[-1].allocated == 4 * LINEAR + 2 * 4


def test_model_that_stays_on_the_cpu_in_a_whole_program_is_refused():
    def program():
        # on the default device, which is the card where a program is run for one
        losses = torch.zeros(3)
        model = torch.nn.Linear(256, 256).to("cpu")
        adam = torch.optim.Adam(model.parameters())
        for step in range(3):
            loss = model(torch.ones(8, 256).to("cpu")).sum()
            loss.backward()
            adam.step()
            losses[step] = loss.item()

    with pytest.raises(UsageError, match="no model is on cuda"):
        tensorlens.estimate(program, card="t4")


SCRIPT = """
import torch
device = torch.device("cpu")
data = torch.zeros(1000, 64)
model = torch.nn.Linear(64, 64).to(device)
adam = torch.optim.Adam(model.parameters())
for step in range(3):
    model({batch}).sum().backward()
    adam.step()
"""


@pytest.mark.parametrize("batch", ["data[:8].to(device)", "data[:8]"])
def test_script_for_the_cpu_is_refused_whatever_its_data_lie_on(batch, tmp_path):
    # where a program is run for a card its data are on it, as they are made without a device
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(batch=batch))
    with pytest.raises(UsageError, match="keeps its tensors on the CPU: no model is on cuda"):
        tensorlens.estimate(str(script), card="t4")


def test_step_with_a_model_from_outside_says_what_to_build():
    model = torch.nn.Linear(64, 64)

    def make():
        return lambda: model(torch.ones(8, 64, device="cuda")).sum().backward()

    with pytest.raises(ProgramFailed) as caught:
        tensorlens.estimate(make, card="t4")
    assert str(caught.value) == (
        "the program failed: an operator has tensors on different devices: make_step must build "
        "everything that the step uses, model and optimizer included, and put it on the device"
    )
    assert "found at least two devices" in caught.value.details
