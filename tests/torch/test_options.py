"""Options around a step: what they do to the program, and how little they do beside it."""

import torch
from torch import nn

from tensorlens.planning.torch import Accumulate, Autocast, Stage


class Weight(nn.Module):
    """One weight of 1, whose gradient is 1."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self):
        return self.weight.sum()


def test_autocast_searches_for_the_device_before_the_steps():
    class Counted(Stage):
        searches = 0

        def device_type(self):
            self.searches += 1
            return "cpu"

    net = Weight()
    optimizer = torch.optim.SGD(net.parameters(), lr=1)
    option = Autocast("bf16", Counted(estimated=False, batch=None))
    option.built()
    for _ in range(2):
        with option.stepping():
            assert torch.is_autocast_enabled("cpu")
            net().backward()
            optimizer.step()
    assert option.stage.searches == 1


def test_gradients_of_all_parts_count_whoever_sets_them_to_zero():
    for owner in ("net", "optimizer"):
        net = Weight()
        optimizer = torch.optim.SGD(net.parameters(), lr=1)
        zeroing = {"net": net, "optimizer": optimizer}[owner]

        def step(net=net, optimizer=optimizer, zeroing=zeroing):
            zeroing.zero_grad()
            net().backward()
            optimizer.step()

        Accumulate(2, Stage(estimated=True, batch=2)).around(step)()
        # the mean of two gradients of 1
        assert net.weight.item() == 0
