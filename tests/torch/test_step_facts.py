"""What is seen of a program's optimizers besides its allocations."""

import torch

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
