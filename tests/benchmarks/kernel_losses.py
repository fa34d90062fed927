"""Heads with losses, after the same benchmarks as :mod:`.kernel_programs`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.kernel_programs import (
    DEVICE,
    PROGRAMS,
    Step,
    dtype_of,
    jsd,
    program,
    randn,
    twin_of,
)

__all__ = ["IGNORED", "PROGRAMS"]

IGNORED = -100
"""The label that is not counted."""


@program("fused_linear_cross_entropy")
def _fused_linear_cross_entropy(tokens: int, config: dict[str, Any]) -> Step:
    width, vocabulary, dtype = config["H"], config["V"], dtype_of(config)
    head = nn.Linear(width, vocabulary, bias=False, dtype=dtype).to(DEVICE)
    twin = twin_of(width * vocabulary, dtype=dtype)
    x = randn(tokens, width, dtype=dtype, grad=True)
    target = torch.randint(vocabulary, (tokens, 1), device=DEVICE).squeeze(1)
    loss = nn.CrossEntropyLoss()

    def step(kept: object = twin) -> None:
        result = loss(head(x), target)
        result.backward()

    return step


@program("fused_linear_jsd")
def _fused_linear_jsd(tokens: int, config: dict[str, Any]) -> Step:
    width, vocabulary, dtype = config["H"], config["V"], dtype_of(config)
    student = nn.Linear(width, vocabulary, bias=False, dtype=dtype, device=DEVICE)
    teacher = nn.Linear(width, vocabulary, bias=False, dtype=dtype, device=DEVICE)
    # both twins are given the same weights
    student_x = randn(tokens, width, dtype=dtype, grad=True)
    teacher_x = randn(tokens, width, dtype=dtype)

    def forward() -> Tensor:
        mine, theirs = student(student_x), teacher(teacher_x)
        log_q = torch.log_softmax(mine / 1.0, dim=-1)
        log_p = torch.log_softmax(theirs / 1.0, dim=-1)
        return jsd(log_q, log_p, dtype)

    def step() -> None:
        result = forward()
        result.backward()

    return step


def _logps(logits: Tensor, labels: Tensor, ignored: int) -> Tensor:
    mask = labels != ignored
    labels = torch.where(labels == ignored, 0, labels)
    each = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
    return (each * mask).sum(-1) / mask.sum(-1)


def _likelihood(logits: Tensor, labels: Tensor) -> Tensor:
    flat = logits.view(-1, logits.shape[-1])
    return F.cross_entropy(flat, labels.view(-1), ignore_index=IGNORED)


def _preference(
    batch: int, config: dict[str, Any], losses: Callable[[Tensor, Tensor], Tensor]
) -> Step:
    """Return a step of a head whose loss prefers the first half of the batch."""
    vocabulary, width, dtype = config["V"], config["H"], dtype_of(config)
    head = nn.Linear(width, vocabulary, bias=False, dtype=dtype).to(DEVICE)
    twin = twin_of(vocabulary * width, dtype=dtype)
    x = randn(batch, config["T"], width, dtype=dtype, grad=True)
    target = torch.randint(vocabulary, (batch, config["T"]), dtype=torch.long, device=DEVICE)
    half = batch // 2

    def forward() -> Tensor:
        outputs = x @ head.weight.t()
        logits = outputs.float()
        likelihood = _likelihood(logits[:half], target[:half])
        logps = _logps(logits, target, IGNORED)
        return likelihood * 1.0 - losses(logps[:half], logps[half:]).mean()

    def step(kept: object = twin) -> None:
        result = forward()
        result.backward()

    return step


@program("fused_linear_simpo_loss")
def _simpo(batch: int, config: dict[str, Any]) -> Step:
    def losses(chosen: Tensor, rejected: Tensor) -> Tensor:
        logits = (chosen - rejected) - (0.5 / 0.1)
        return F.logsigmoid(0.1 * logits) * (1 - 0.0) + F.logsigmoid(-0.1 * logits) * 0.0

    return _preference(batch, config, losses)


@program("fused_linear_cpo_loss")
def _cpo(batch: int, config: dict[str, Any]) -> Step:
    def losses(chosen: Tensor, rejected: Tensor) -> Tensor:
        logits = chosen - rejected
        return F.logsigmoid(0.1 * logits) * (1 - 0.0) + F.logsigmoid(-0.1 * logits) * 0.0

    return _preference(batch, config, losses)


@program("fused_linear_orpo_loss")
def _orpo(batch: int, config: dict[str, Any]) -> Step:
    def losses(chosen: Tensor, rejected: Tensor) -> Tensor:
        away = torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
        return 0.1 * F.logsigmoid((chosen - rejected) - away)

    return _preference(batch, config, losses)


def _against_reference(
    batch: int, config: dict[str, Any], losses: Callable[[Tensor, Tensor, Tensor], Tensor]
) -> Step:
    """Return a step of a head that is compared with another, whose weights do not change."""
    vocabulary, width, dtype = config["V"], config["H"], dtype_of(config)
    ignored, biased = config["ignore_index"], config["bias"]
    head = nn.Linear(width, vocabulary, bias=biased, dtype=dtype).to(DEVICE)
    reference = nn.Linear(width, vocabulary, bias=False, dtype=dtype).to(DEVICE)
    twin = twin_of(*2 * [vocabulary * width], vocabulary, dtype=dtype)
    x, reference_x = (randn(batch, config["T"], width, dtype=dtype) for _ in range(2))
    target = torch.randint(vocabulary, (batch, config["T"]), dtype=torch.long, device=DEVICE)

    def forward() -> Tensor:
        outputs = x @ head.weight.t()
        if biased:
            outputs = outputs + head.bias
        logits = outputs.float()
        logps = _logps(logits, target, ignored)
        with torch.no_grad():
            theirs = _logps(reference_x @ reference.weight.t(), target, ignored)
        aside = logits.detach().mean()
        return losses(logps, theirs, aside)

    def step(kept: object = twin) -> None:
        result = forward()
        result.backward()

    return step


@program("dpo_loss")
def _dpo(batch: int, config: dict[str, Any]) -> Step:
    def losses(mine: Tensor, theirs: Tensor, aside: Tensor) -> Tensor:
        ratios, half = mine - theirs, batch // 2
        return -F.logsigmoid(config["beta"] * (ratios[:half] - ratios[half:])).mean()

    return _against_reference(batch, config, losses)


@program("kto_loss")
def _kto(batch: int, config: dict[str, Any]) -> Step:
    kl = randn(1, dtype=dtype_of(config))

    def losses(mine: Tensor, theirs: Tensor, aside: Tensor) -> Tensor:
        ratios, half = mine - theirs, batch // 2
        liked = 1 - F.sigmoid(config["beta"] * (ratios[:half] - kl))
        disliked = 1 - F.sigmoid(config["beta"] * (kl - ratios[half:]))
        return torch.cat((liked, disliked), 0).mean()

    return _against_reference(batch, config, losses)


def _distilled(
    tokens: int, config: dict[str, Any], soft: Callable[[Tensor, Tensor], Tensor]
) -> Step:
    """Return a step of a student's head, half as wide, that learns from a teacher's."""
    vocabulary, width, dtype = config["V"], config["H"], dtype_of(config)
    student = nn.Linear(width // 2, vocabulary, bias=False, dtype=dtype).to(DEVICE)
    teacher = nn.Linear(width, vocabulary, bias=False, dtype=dtype).to(DEVICE)
    twin = twin_of(vocabulary * width // 2, vocabulary * width, dtype=dtype)
    inputs = [randn(tokens, width // 2, dtype=dtype) for _ in range(3)]
    x = inputs[2].requires_grad_(True)
    teacher_x = randn(tokens, width, dtype=dtype)
    target = torch.randint(0, vocabulary, (tokens,), dtype=torch.long, device=DEVICE)

    def forward() -> Tensor:
        outputs = x @ student.weight.t()
        with torch.no_grad():
            theirs = teacher_x @ teacher.weight.t()
        mine_logits = outputs.view(tokens, -1).float()
        their_logits = theirs.view(tokens, -1).float()
        hard = _likelihood(mine_logits, target)
        mine_logits /= 1.0
        their_logits /= 1.0
        return 0.5 * hard + 0.5 * soft(mine_logits, their_logits)

    def step(kept: object = (twin, inputs)) -> None:
        result = forward()
        result.backward()

    return step


@program("distill_jsd_loss")
def _distilled_jsd(tokens: int, config: dict[str, Any]) -> Step:
    def soft(mine: Tensor, theirs: Tensor) -> Tensor:
        log_q, log_p = F.log_softmax(mine, dim=-1), F.log_softmax(theirs, dim=-1)
        mean = (1 - 0.5) * log_q.exp() + 0.5 * log_p.exp()
        log_mean = mean.log()
        first = F.kl_div(log_mean, log_q, reduction="batchmean", log_target=True)
        second = F.kl_div(log_mean, log_p, reduction="batchmean", log_target=True)
        return 0.5 * second + (1 - 0.5) * first

    return _distilled(tokens, config, soft)


@program("distill_cosine_loss")
def _distilled_cosine(tokens: int, config: dict[str, Any]) -> Step:
    def soft(mine: Tensor, theirs: Tensor) -> Tensor:
        mine, theirs = (F.normalize(each, p=2, dim=-1) for each in (mine, theirs))
        return (1.0 * (1 - F.cosine_similarity(mine, theirs, dim=-1))).mean()

    return _distilled(tokens, config, soft)
