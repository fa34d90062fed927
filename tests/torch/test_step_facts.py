"""What is seen of a program's optimizers besides its allocations."""

import torch

from tensorlens.planning.suggest import checkpoints
from tensorlens.planning.torch import StepWatch


class WithoutSignature(torch.optim.SGD):
    __signature__ = object()


def test_facts_of_an_optimizer_whose_signature_cannot_be_read():
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = WithoutSignature([parameter], lr=0.5, weight_decay=0.1)
    facts = StepWatch(lambda name: None).facts(is_whole=False)
    found = next(each for each in facts.optimizers if each.kind == "WithoutSignature")
    assert (found.decays, found.rate, found.largest) == (True, 0.5, 12)
    del optimizer


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(2, 2)

    def forward(self, x):
        return self.inner(x)


class Numbered(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places = torch.nn.ModuleDict({"0": Block(), "1": Block(), "head": torch.nn.ReLU()})


class Named(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.places = torch.nn.ModuleDict({"first": Block(), "a-b": Block()})


def pasted_code(net):
    """Return the kinds of modules that the printed code of checkpoints changes."""
    facts = StepWatch(lambda name: None).facts(is_whole=False)
    blocks = [each for each in facts.blocks if each.path.startswith("net.")]
    exec(checkpoints._loop(blocks), {"net": net})
    return [name for name, each in net.named_modules() if "forward" in vars(each)]


def test_code_of_checkpoints_wraps_the_blocks_of_a_sequential_and_no_others():
    net = torch.nn.Sequential(Block(), Block(), torch.nn.Linear(2, 2))
    assert pasted_code(net) == ["0", "1"]
    net = torch.nn.Sequential(Block(), torch.nn.ReLU(), Block())
    assert pasted_code(net) == ["0", "2"]


def test_code_of_checkpoints_wraps_the_blocks_of_a_module_dict():
    net = Named()
    assert pasted_code(net) == ["places.first", "places.a-b"]
    net = Numbered()
    assert pasted_code(net) == ["places.0", "places.1"]
