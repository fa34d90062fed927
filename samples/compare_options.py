"""Which option saves memory: a small transformer's training step under eight of them.

Run it with ``python samples/compare_options.py``; every option runs in processes of its own.
"""

import torch
from torch import nn

import tensorlens


def make_step(batch=32):
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)
    data = torch.randn(batch, 64, 128)

    def step():
        optimizer.zero_grad()
        loss = (model(data) - data).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    return step


def one_thread(make_step):
    """An option of one's own: it is called with ``make_step`` and returns the step."""
    torch.set_num_threads(1)
    return make_step()


OPTIONS = {
    "baseline": {},
    "gradients kept": {"set_to_none": False},
    "SGD": {"optimizer": "sgd"},
    "checkpoint": {"checkpoint": "blocks"},
    "bf16": {"autocast": "bf16"},
    "checkpoint + bf16": {"checkpoint": "blocks", "autocast": "bf16"},
    "4 parts": {"accumulate": 4},
    "offload": {"offload": True},
    "one thread": one_thread,
}

if __name__ == "__main__":
    print(tensorlens.compare(make_step, OPTIONS, batch=32))
