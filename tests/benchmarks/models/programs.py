"""Training loops as the measurements of ``measured_training.csv`` ran them, four iterations.

Locals live on from one iteration to the next, as they did there: the outputs of the one before are
there while the next is on its way.
"""

from typing import Any

import torch
from torch import nn

from tests.benchmarks.models.language import language_model
from tests.benchmarks.models.vision import NETWORKS

ITERATIONS = 4
PICTURE = (3, 86, 86)
LENGTH = 128


def pictures(model: str, optimizer: str, batch: int) -> None:
    """Train a network on pictures that come from host memory."""
    network = NETWORKS[model]().to("cuda").train()
    optimize = getattr(torch.optim, optimizer)(network.parameters(), lr=1e-3)
    criterion = nn.CrossEntropyLoss()
    classes = list(network.parameters())[-1].shape[0]
    for _ in range(ITERATIONS):
        loaded = torch.randn(batch, *PICTURE), torch.randint(0, classes, (batch,))
        optimize.zero_grad()
        inputs, labels = loaded[0].to("cuda"), loaded[1].to("cuda")
        outputs = network(inputs)
        loss = criterion(outputs, labels)
        loss.backward()
        optimize.step()
        _, _predicted = torch.max(outputs, 1)


def texts(model: str, optimizer: str, batch: int) -> None:
    """Train a language model on texts cut to 128 tokens and filled up to the longest of a batch."""
    network = language_model(model)
    optimize = _optimizer(optimizer, network)
    network.to("cuda")
    for _ in range(ITERATIONS):
        tokens = torch.randint(5, 30_000, (batch, LENGTH))
        mask = torch.ones(batch, LENGTH, dtype=torch.int64)
        mask[1:, LENGTH // 2 :] = 0
        loaded = {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}
        optimize.zero_grad()
        on_card = {name: tensor.to("cuda") for name, tensor in loaded.items()}
        outputs = network(**on_card)
        loss = outputs.loss
        loss.backward()
        optimize.step()


def _optimizer(name: str, network: nn.Module) -> Any:
    if name == "Adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(network.parameters(), lr=1e-3, relative_step=False)
    return getattr(torch.optim, name)(network.parameters(), lr=1e-3)
