"""Seconds of `estimate()` of GPT-2 with 124 million parameters, and of more in the same process."""

import importlib.util
from time import perf_counter

import torch

import tensorlens


def make_step():
    """Build the model of transformers with AdamW, and four sequences of 512 tokens."""
    from tests.benchmarks.models.language import language_model

    model = language_model("openai-community/gpt2").cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.randint(0, 50257, (4, 512), device="cuda")

    def step():
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def show_all() -> None:
    """Print the seconds of each call, in their order."""
    if importlib.util.find_spec("transformers") is None:
        print("\nestimate() of GPT-2: needs transformers")
        return
    print("\nestimate() of GPT-2 124M on a T4, torch and transformers not imported before")
    for steps, name in ((3, "the first"), (3, "the same again"), (1, "one step"), (13, "13 steps")):
        begun = perf_counter()
        tensorlens.estimate(make_step, card="t4", steps=steps)
        print(f"  {name:<34}{perf_counter() - begun:>8.2f} s")


if __name__ == "__main__":
    show_all()
