"""Three trainings, estimated on a machine that has no GPU: what will each need?

    python samples/will_it_fit.py                     # the CIFAR network, GPT-2 124M, Llama 7B
    tensorlens estimate samples/will_it_fit.py:gpt2 --card rtx3090 --set batch=4
    tensorlens estimate samples/will_it_fit.py:gpt2 --capacity 24GiB --max-batch

The last two models need ``transformers``; they are built from their configurations with random
weights, and nothing is downloaded.
"""

import torch
from torch import nn
from torch.nn import functional as F

import tensorlens


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 6, 5)
        self.conv2 = nn.Conv2d(6, 16, 5)
        self.fc1 = nn.Linear(16 * 5 * 5, 12000)
        self.fc2 = nn.Linear(12000, 84)
        self.fc3 = nn.Linear(84, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = F.relu(self.fc1(x.flatten(1)))
        return self.fc3(F.relu(self.fc2(x)))


def cifar(batch=256):
    """The network of PyTorch's CIFAR-10 tutorial with a wide first linear layer."""
    net = Net().cuda()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9)

    def step():
        images = torch.rand(batch, 3, 32, 32).cuda()
        labels = torch.randint(0, 10, (batch,)).cuda()
        optimizer.zero_grad()
        F.cross_entropy(net(images), labels).backward()
        optimizer.step()

    return step


def gpt2(batch=8, sequence=1024):
    """GPT-2 124M, AdamW, autocast to bf16."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config()).cuda()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        tokens = torch.randint(0, 50257, (batch, sequence)).cuda()
        optimizer.zero_grad()
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(tokens, labels=tokens).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return step


def llama_7b(batch=1, sequence=2048, checkpointing=False):
    """Llama 7B, all of it in bf16, AdamW."""
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig()).bfloat16().cuda()
    if checkpointing:
        model.gradient_checkpointing_enable()
    optimizer = torch.optim.AdamW(model.parameters())

    def step():
        tokens = torch.randint(0, 32000, (batch, sequence)).cuda()
        optimizer.zero_grad()
        model(tokens, labels=tokens).loss.backward()
        optimizer.step()

    return step


def main():
    for make_step in (cifar, gpt2, llama_7b):
        estimate = tensorlens.estimate(make_step, card="a100-80gb")
        print(f"{make_step.__doc__}\n\n{estimate.explain()}\n")


if __name__ == "__main__":
    main()
