"""What the torch and Hugging Face side of Liger-Kernel's memory benchmarks does, in our own words.

Each program is told the row's x and configuration, makes what the benchmark makes (its Liger twin's
parameters too, where the script makes both), and returns the step that is measured. After
``benchmark/scripts/benchmark_*.py`` and ``test/utils.py`` of linkedin/Liger-Kernel, 0.2.1 to 0.7.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Step = Callable[[], object]
Program = Callable[[int, dict[str, Any]], Step]

PROGRAMS: dict[str, Program] = {}
"""Name of a kernel, as the table spells it, to its program."""
DEVICE = "cuda"


def _program(name: str) -> Callable[[Program], Program]:
    def keep(program: Program) -> Program:
        PROGRAMS[name] = program
        return program

    return keep


def _dtype(config: dict[str, Any]) -> torch.dtype:
    name = config.get("dtype", "torch.float32").removeprefix("torch.")
    found: torch.dtype = getattr(torch, name)
    return found


def _randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    return torch.randn(*shape, dtype=dtype, device=DEVICE, requires_grad=grad)


def _twin(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """Return parameters of the Liger module that stands beside the measured one."""
    return [torch.zeros(size, dtype=dtype, device=DEVICE) for size in sizes]


def _modes(
    mode: str, forward: Callable[[], Tensor], gradient: Callable[[Tensor], Tensor], keep: object
) -> Step:
    """Return the forward pass, the backward pass or both; ``keep`` lives as long as the step."""
    if mode == "forward":
        return lambda kept=keep: forward()  # type: ignore[misc]
    if mode == "backward":
        result = forward()
        given = gradient(result)
        return lambda kept=keep: result.backward(given, retain_graph=True)  # type: ignore[misc]

    def both(kept: object = keep) -> None:
        result = forward()
        result.backward(gradient(result), retain_graph=True)

    return both


@_program("cross_entropy")
def _cross_entropy(vocabulary: int, config: dict[str, Any]) -> Step:
    tokens = config["B"] * config["T"]
    logits = _randn(tokens, vocabulary, grad=True)
    target = torch.randint(vocabulary, (tokens, 1), device=DEVICE).squeeze(1)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        result = loss(logits, target)
        result.backward()

    return step


@_program("embedding")
def _embedding(vocabulary: int, config: dict[str, Any]) -> Step:
    width, dtype = config["D"], _dtype(config)
    embedding = nn.Embedding(vocabulary, width).to(DEVICE).to(dtype)
    twin = _twin(vocabulary * width, dtype=dtype)
    ids = torch.randint(0, vocabulary, (config["B"], config["T"]), device=DEVICE)

    def step(kept: object = twin) -> None:
        output = embedding(ids)
        output.backward(torch.randn_like(output))

    return step


def _gated(length: int, config: dict[str, Any], batch: int) -> Step:
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    dtype = _dtype(config)
    settings = LlamaConfig(
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        hidden_act=config["hidden_act"],
    )
    x = _randn(batch, length, config["hidden_size"], dtype=dtype, grad=True)
    layer = LlamaMLP(config=settings).to(DEVICE).to(dtype)
    return _modes(config["mode"], lambda: layer(x), torch.randn_like, None)


@_program("geglu")
def _geglu(length: int, config: dict[str, Any]) -> Step:
    return _gated(length, config, config["bsz"])


@_program("swiglu")
def _swiglu(length: int, config: dict[str, Any]) -> Step:
    return _gated(length, config, config["B"])


@_program("layer_norm")
def _layer_norm(width: int, config: dict[str, Any]) -> Step:
    twin = _twin(width, width)
    norm = nn.LayerNorm(width, eps=config["eps"]).to(DEVICE)
    x = _randn(config["M"], width, dtype=_dtype(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)
    return _modes(config["mode"], lambda: norm(x), lambda result: dy, twin)


class _LlamaRMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor) -> Tensor:
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.eps)
        return self.weight * hidden.to(dtype)


@_program("rms_norm")
def _rms_norm(width: int, config: dict[str, Any]) -> Step:
    twin = _twin(width)
    norm = _LlamaRMSNorm(width, config["eps"]).to(DEVICE)
    x = _randn(config["M"], width, dtype=_dtype(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)
    return _modes(config["mode"], lambda: norm(x), lambda result: dy, twin)


@_program("group_norm")
def _group_norm(channels: int, config: dict[str, Any]) -> Step:
    groups = channels // config["channels_per_group"]
    twin = _twin(channels, channels)
    norm = nn.GroupNorm(num_groups=groups, num_channels=channels, eps=config["eps"]).to(DEVICE)
    x = _randn(config["M"], channels, config["H"], dtype=_dtype(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)
    # the script measures forward and backward together whatever the mode says
    return _modes("full", lambda: norm(x), lambda result: dy, twin)


def _of_probabilities(
    size: tuple[int, int], loss: Callable[[Tensor, Tensor], Tensor], log: bool, log_target: bool
) -> Step:
    def chances(grad: bool, is_log: bool) -> Tensor:
        x = _randn(*size, grad=grad)
        return x.log_softmax(dim=-1) if is_log else x.softmax(dim=-1)

    q, p = chances(True, log), chances(False, log_target)

    def step() -> None:
        result = loss(q, p)
        result.backward(retain_graph=True)

    return step


@_program("kl_div")
def _kl_div(vocabulary: int, config: dict[str, Any]) -> Step:
    size = config["B"] * config["T"], vocabulary
    return _of_probabilities(size, nn.KLDivLoss(reduction="batchmean"), True, False)


@_program("tvd")
def _tvd(vocabulary: int, config: dict[str, Any]) -> Step:
    def distance(p: Tensor, q: Tensor) -> Tensor:
        tvd = torch.abs(p - q) / 2.0
        return torch.sum(tvd) / p.size(0)

    size = config["B"] * config["T"], vocabulary
    return _of_probabilities(size, distance, False, False)


def _jsd_of(log_q: Tensor, log_p: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    kl = nn.KLDivLoss(reduction="none", log_target=True)
    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    log_p, log_q = log_p.view(-1, log_p.size(-1)), log_q.view(-1, log_q.size(-1))
    m = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    first = 0.5 * kl(torch.log(m), log_p).sum(dim=-1)
    loss = first + (1 - 0.5) * kl(torch.log(m), log_q).sum(dim=-1)
    return (loss / log_q.shape[0]).sum().to(dtype)


@_program("jsd")
def _jsd(x: int, config: dict[str, Any]) -> Step:
    size = (config["B"] * config["T"], x) if "T" in config else (x, config["V"])
    return _of_probabilities(size, _jsd_of, True, True)


@_program("softmax")
def _softmax(width: int, config: dict[str, Any]) -> Step:
    # the script gives the width alone as the shape
    x = _randn(width, dtype=_dtype(config), grad=True)
    softmax = nn.Softmax(dim=-1)
    return _modes(config["mode"], lambda: softmax(x), torch.ones_like, None)


@_program("relu_squared")
def _relu_squared(width: int, config: dict[str, Any]) -> Step:
    x = _randn(width, dtype=_dtype(config), grad=True)

    def forward() -> Tensor:
        kept = F.relu(x)
        return torch.square(kept)

    return _modes(config["mode"], forward, torch.ones_like, None)


@_program("sparsemax")
def _sparsemax(vocabulary: int, config: dict[str, Any]) -> Step:
    x = _randn(config["B"] * config["T"], vocabulary, grad=True)

    def forward() -> Tensor:
        ordered, _ = torch.sort(x, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        ranks = torch.arange(1, x.size(-1) + 1, device=x.device, dtype=x.dtype)
        shape = [1] * (x.dim() - 1) + [-1]
        ranks = ranks.view(shape)
        support = (1 + ranks * ordered) > sums
        size = support.sum(dim=-1, keepdim=True).clamp(min=1)
        threshold = (torch.gather(sums, -1, size - 1) - 1) / size.to(x.dtype)
        return torch.clamp(x - threshold, min=0)

    def step() -> None:
        result = forward()
        result.backward(torch.randn_like(result))

    return step


@_program("fused_add_rms_norm")
def _fused_add_rms_norm(width: int, config: dict[str, Any]) -> Step:
    twin = _twin(width)
    norm = _LlamaRMSNorm(width, config["eps"]).to(DEVICE)
    x = _randn(config["M"], width, dtype=_dtype(config))
    residual = torch.randn_like(x)
    dy, ds = torch.randn_like(x), torch.randn_like(x)
    x.requires_grad_(True)
    residual.requires_grad_(True)

    def step(kept: object = twin) -> None:
        total = residual + x
        y = norm(total)
        torch.autograd.backward((y, total), (dy, ds), retain_graph=True)

    return step


@_program("dyt")
def _dyt(x_value: int, config: dict[str, Any]) -> Step:
    width = config.get("hidden_size", x_value)
    rows = config.get("BT", config.get("M", x_value))
    alpha = nn.Parameter(torch.full((1,), 0.5, device=DEVICE))
    gamma = nn.Parameter(torch.ones(width, device=DEVICE))
    beta = nn.Parameter(torch.zeros(width, device=DEVICE))
    twin = _twin(1, width, width)
    x = _randn(rows, width, dtype=_dtype(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)
    return _modes(
        config["mode"], lambda: gamma * torch.tanh(alpha * x) + beta, lambda result: dy, twin
    )


@_program("poly_norm")
def _poly_norm(width: int, config: dict[str, Any]) -> Step:
    eps = config["eps"]
    weight = nn.Parameter(torch.full((3,), 1.0 / 3.0, device=DEVICE))
    bias = nn.Parameter(torch.ones(1, device=DEVICE))
    twin = _twin(3, 1)
    x = _randn(config.get("BT", config.get("M", 0)), width, dtype=_dtype(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def normed(power: Tensor) -> Tensor:
        scale = torch.rsqrt(power.pow(2).mean(-1, keepdim=True) + eps)
        return power * scale

    def forward() -> Tensor:
        wide = x.to(torch.float32)
        cube, square, plain = normed(wide**3), normed(wide**2), normed(wide)
        result = weight[0] * cube + weight[1] * square + weight[2] * plain + bias
        return result.to(x.dtype)

    return _modes(config["mode"], forward, lambda result: dy, twin)


@_program("rope")
def _rope(x: int, config: dict[str, Any]) -> Step:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    dtype, heads, kv_heads = _dtype(config), config["num_q_heads"], config["num_kv_heads"]
    width, length = config.get("hidden_size", x), config.get("seq_len", x)
    head = width // heads
    frequencies = torch.arange(0, head, 2, dtype=torch.float32, device=DEVICE)
    # the buffer of the rotary embedding, and its copy
    inverse = 1.0 / (10000 ** (frequencies / head))
    q = _randn(1, length, heads, head, dtype=dtype, grad=True).transpose(1, 2)
    k = _randn(1, length, kv_heads, head, dtype=dtype, grad=True).transpose(1, 2)
    dq, dk = torch.randn_like(q), torch.randn_like(k)
    positions = torch.arange(length, device=DEVICE, dtype=torch.long).unsqueeze(0)
    angles = (inverse[None, :, None] @ positions[:, None, :].float()).transpose(1, 2)
    both = torch.cat((angles, angles), dim=-1)
    cos, sin = both.cos().to(dtype), both.sin().to(dtype)
    del frequencies, angles, both

    def step(kept: object = (inverse, positions)) -> None:
        results = apply_rotary_pos_emb(q, k, cos, sin)
        torch.autograd.grad(results, (q, k), (dq, dk), allow_unused=True, retain_graph=True)

    return step


@_program("fused_linear_cross_entropy")
def _fused_linear_cross_entropy(tokens: int, config: dict[str, Any]) -> Step:
    width, vocabulary, dtype = config["H"], config["V"], _dtype(config)
    head = nn.Linear(width, vocabulary, bias=False, dtype=dtype).to(DEVICE)
    twin = _twin(width * vocabulary, dtype=dtype)
    x = _randn(tokens, width, dtype=dtype, grad=True)
    target = torch.randint(vocabulary, (tokens, 1), device=DEVICE).squeeze(1)
    loss = nn.CrossEntropyLoss()

    def step(kept: object = twin) -> None:
        result = loss(head(x), target)
        result.backward()

    return step


@_program("fused_linear_jsd")
def _fused_linear_jsd(tokens: int, config: dict[str, Any]) -> Step:
    width, vocabulary, dtype = config["H"], config["V"], _dtype(config)
    student = nn.Linear(width, vocabulary, bias=False, dtype=dtype, device=DEVICE)
    teacher = nn.Linear(width, vocabulary, bias=False, dtype=dtype, device=DEVICE)
    # both twins are given the same weights
    student_x = _randn(tokens, width, dtype=dtype, grad=True)
    teacher_x = _randn(tokens, width, dtype=dtype)

    def forward() -> Tensor:
        mine, theirs = student(student_x), teacher(teacher_x)
        log_q = torch.log_softmax(mine / 1.0, dim=-1)
        log_p = torch.log_softmax(theirs / 1.0, dim=-1)
        return _jsd_of(log_q, log_p, dtype)

    def step() -> None:
        result = forward()
        result.backward()

    return step


class _Preference(nn.Module):
    """A head with a preference loss on chosen and rejected halves of the batch.

    As in ``HFAlignmentLoss``; ``sign`` is that of the preference term, ``alpha`` weighs the
    likelihood of what was chosen.
    """

    def __init__(
        self,
        config: dict[str, Any],
        losses: Callable[[Tensor, Tensor], Tensor],
        sign: float,
        whole: bool = False,
    ) -> None:
        super().__init__()
        self.head = nn.Linear(config["H"], config["V"], bias=False, dtype=_dtype(config))
        self.losses, self.sign, self.whole = losses, sign, whole

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        half = x.shape[0] // 2
        outputs = x @ self.head.weight.t()
        logits = outputs.float()
        chosen = logits[:half]
        likelihood = F.cross_entropy(
            chosen.view(-1, chosen.shape[-1]), target[:half].view(-1), ignore_index=-100
        )
        logps = self._logps(logits, target)
        result = likelihood * 1.0 + self.sign * self.losses(logps[:half], logps[half:]).mean()
        if self.whole:
            self.aside = logits[:half].detach().mean(), logits[half:].detach().mean()
        return result

    def _logps(self, logits: Tensor, labels: Tensor) -> Tensor:
        mask = labels != -100
        labels = torch.where(labels == -100, 0, labels)
        each = torch.gather(logits.log_softmax(-1), dim=2, index=labels.unsqueeze(2)).squeeze(2)
        return (each * mask).sum(-1) / mask.sum(-1)


def _preference(
    batch: int, config: dict[str, Any], losses: Callable[[Tensor, Tensor], Tensor], sign: float
) -> Step:
    vocabulary, dtype = config["V"], _dtype(config)
    model = _Preference(config, losses, sign).to(DEVICE)
    twin = _twin(vocabulary * config["H"], dtype=dtype)
    x = _randn(batch, config["T"], config["H"], dtype=dtype, grad=True)
    target = torch.randint(vocabulary, (batch, config["T"]), dtype=torch.long, device=DEVICE)

    def step(kept: object = twin) -> None:
        result = model(x, target)
        result.backward()

    return step


@_program("fused_linear_simpo_loss")
def _simpo(batch: int, config: dict[str, Any]) -> Step:
    def losses(chosen: Tensor, rejected: Tensor) -> Tensor:
        logits = (chosen - rejected) - (0.5 / 0.1)
        return F.logsigmoid(0.1 * logits) * (1 - 0.0) + F.logsigmoid(-0.1 * logits) * 0.0

    return _preference(batch, config, losses, -1.0)


@_program("fused_linear_cpo_loss")
def _cpo(batch: int, config: dict[str, Any]) -> Step:
    def losses(chosen: Tensor, rejected: Tensor) -> Tensor:
        logits = chosen - rejected
        return F.logsigmoid(0.1 * logits) * (1 - 0.0) + F.logsigmoid(-0.1 * logits) * 0.0

    return _preference(batch, config, losses, -1.0)


@_program("fused_linear_orpo_loss")
def _orpo(batch: int, config: dict[str, Any]) -> Step:
    def losses(chosen: Tensor, rejected: Tensor) -> Tensor:
        away = torch.log1p(-torch.exp(chosen)) - torch.log1p(-torch.exp(rejected))
        return 0.1 * F.logsigmoid((chosen - rejected) - away)

    return _preference(batch, config, losses, -1.0)
