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


def program(name: str) -> Callable[[Program], Program]:
    """Return what keeps a function as a kernel's program."""

    def keep(program: Program) -> Program:
        PROGRAMS[name] = program
        return program

    return keep


def dtype_of(config: dict[str, Any]) -> torch.dtype:
    """Return the type that a row's configuration names."""
    name = config.get("dtype", "torch.float32").removeprefix("torch.")
    found: torch.dtype = getattr(torch, name)
    return found


def randn(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    """Return a random tensor on the card."""
    return torch.randn(*shape, dtype=dtype, device=DEVICE, requires_grad=grad)


def twin_of(*sizes: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
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


@program("cross_entropy")
def _cross_entropy(vocabulary: int, config: dict[str, Any]) -> Step:
    tokens = config["B"] * config["T"]
    logits = randn(tokens, vocabulary, grad=True)
    target = torch.randint(vocabulary, (tokens, 1), device=DEVICE).squeeze(1)
    loss = nn.CrossEntropyLoss()

    def step() -> None:
        result = loss(logits, target)
        result.backward()

    return step


@program("embedding")
def _embedding(vocabulary: int, config: dict[str, Any]) -> Step:
    width, dtype = config["D"], dtype_of(config)
    embedding = nn.Embedding(vocabulary, width).to(DEVICE).to(dtype)
    twin = twin_of(vocabulary * width, dtype=dtype)
    ids = torch.randint(0, vocabulary, (config["B"], config["T"]), device=DEVICE)

    def step(kept: object = twin) -> None:
        output = embedding(ids)
        output.backward(torch.randn_like(output))

    return step


def _gated(length: int, config: dict[str, Any], batch: int) -> Step:
    from transformers.models.llama.configuration_llama import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    dtype = dtype_of(config)
    settings = LlamaConfig(
        hidden_size=config["hidden_size"],
        intermediate_size=config["intermediate_size"],
        hidden_act=config["hidden_act"],
    )
    x = randn(batch, length, config["hidden_size"], dtype=dtype, grad=True)
    layer = LlamaMLP(config=settings).to(DEVICE).to(dtype)
    return _modes(config["mode"], lambda: layer(x), torch.randn_like, None)


@program("geglu")
def _geglu(length: int, config: dict[str, Any]) -> Step:
    return _gated(length, config, config["bsz"])


@program("swiglu")
def _swiglu(length: int, config: dict[str, Any]) -> Step:
    return _gated(length, config, config["B"])


@program("layer_norm")
def _layer_norm(width: int, config: dict[str, Any]) -> Step:
    twin = twin_of(width, width)
    norm = nn.LayerNorm(width, eps=config["eps"]).to(DEVICE)
    x = randn(config["M"], width, dtype=dtype_of(config))
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


@program("rms_norm")
def _rms_norm(width: int, config: dict[str, Any]) -> Step:
    twin = twin_of(width)
    norm = _LlamaRMSNorm(width, config["eps"]).to(DEVICE)
    x = randn(config["M"], width, dtype=dtype_of(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)
    return _modes(config["mode"], lambda: norm(x), lambda result: dy, twin)


@program("group_norm")
def _group_norm(channels: int, config: dict[str, Any]) -> Step:
    groups = channels // config["channels_per_group"]
    twin = twin_of(channels, channels)
    norm = nn.GroupNorm(num_groups=groups, num_channels=channels, eps=config["eps"]).to(DEVICE)
    x = randn(config["M"], channels, config["H"], dtype=dtype_of(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)
    # the script measures forward and backward together whatever the mode says
    return _modes("full", lambda: norm(x), lambda result: dy, twin)


def _of_probabilities(
    size: tuple[int, int], loss: Callable[[Tensor, Tensor], Tensor], log: bool, log_target: bool
) -> Step:
    def chances(grad: bool, is_log: bool) -> Tensor:
        x = randn(*size, grad=grad)
        return x.log_softmax(dim=-1) if is_log else x.softmax(dim=-1)

    q, p = chances(True, log), chances(False, log_target)

    def step() -> None:
        result = loss(q, p)
        result.backward(retain_graph=True)

    return step


@program("kl_div")
def _kl_div(vocabulary: int, config: dict[str, Any]) -> Step:
    size = config["B"] * config["T"], vocabulary
    return _of_probabilities(size, nn.KLDivLoss(reduction="batchmean"), True, False)


@program("tvd")
def _tvd(vocabulary: int, config: dict[str, Any]) -> Step:
    def distance(p: Tensor, q: Tensor) -> Tensor:
        tvd = torch.abs(p - q) / 2.0
        return torch.sum(tvd) / p.size(0)

    size = config["B"] * config["T"], vocabulary
    return _of_probabilities(size, distance, False, False)


def jsd(log_q: Tensor, log_p: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return the Jensen-Shannon divergence as the benchmarks write it."""
    kl = nn.KLDivLoss(reduction="none", log_target=True)
    log_p, log_q = log_p.to(torch.float), log_q.to(torch.float)
    log_p, log_q = log_p.view(-1, log_p.size(-1)), log_q.view(-1, log_q.size(-1))
    m = torch.lerp(torch.exp(log_q), torch.exp(log_p), 0.5)
    first = 0.5 * kl(torch.log(m), log_p).sum(dim=-1)
    loss = first + (1 - 0.5) * kl(torch.log(m), log_q).sum(dim=-1)
    return (loss / log_q.shape[0]).sum().to(dtype)


@program("jsd")
def _jsd(x: int, config: dict[str, Any]) -> Step:
    size = (config["B"] * config["T"], x) if "T" in config else (x, config["V"])
    return _of_probabilities(size, jsd, True, True)


@program("softmax")
def _softmax(width: int, config: dict[str, Any]) -> Step:
    # the script gives the width alone as the shape
    x = randn(width, dtype=dtype_of(config), grad=True)
    softmax = nn.Softmax(dim=-1)
    return _modes(config["mode"], lambda: softmax(x), torch.ones_like, None)


@program("relu_squared")
def _relu_squared(width: int, config: dict[str, Any]) -> Step:
    x = randn(width, dtype=dtype_of(config), grad=True)

    def forward() -> Tensor:
        kept = F.relu(x)
        return torch.square(kept)

    return _modes(config["mode"], forward, torch.ones_like, None)


@program("sparsemax")
def _sparsemax(vocabulary: int, config: dict[str, Any]) -> Step:
    x = randn(config["B"] * config["T"], vocabulary, dtype=dtype_of(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def forward() -> Tensor:
        ordered, _ = torch.sort(x, dim=-1, descending=True)
        sums = torch.cumsum(ordered, dim=-1)
        ranks = torch.arange(1, x.size(-1) + 1, device=x.device, dtype=x.dtype)
        shape = [1] * (x.dim() - 1) + [-1]
        ranks = ranks.view(shape)
        bound = 1 + ranks * ordered
        support = bound > sums
        size = support.sum(dim=-1, keepdim=True).clamp(min=1)
        total = (ordered * support).sum(dim=-1, keepdim=True)
        threshold = (total - 1) / size
        return torch.clamp(x - threshold, min=0)

    return _modes("full", forward, lambda result: dy, None)


class _AddRMSNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, hidden: Tensor, residual: Tensor) -> tuple[Tensor, Tensor]:
        dtype = hidden.dtype
        hidden = hidden.to(torch.float32)
        residual = residual.to(torch.float32)
        hidden = hidden + residual
        residual = hidden
        variance = hidden.pow(2).mean(-1, keepdim=True)
        hidden = hidden * torch.rsqrt(variance + self.eps)
        return self.weight * hidden.to(dtype), residual.to(dtype)


@program("fused_add_rms_norm")
def _fused_add_rms_norm(width: int, config: dict[str, Any]) -> Step:
    # two Liger modules stand beside it, one of which has a weight twice
    twin = twin_of(width, width, width)
    norm = _AddRMSNorm(width, config["eps"]).to(DEVICE)
    x = randn(config["M"], width, dtype=dtype_of(config))
    residual = torch.randn_like(x)
    dy, ds = torch.randn_like(x), torch.randn_like(residual)
    x.requires_grad_(True)
    residual.requires_grad_(True)

    def step(kept: object = twin) -> None:
        y, total = norm(x, residual)
        torch.autograd.backward((y, total), (dy, ds))

    return step


@program("dyt_beta=True")
@program("dyt_beta=False")
@program("dyt")
def _dyt(width: int, config: dict[str, Any]) -> Step:
    shifted = config.get("beta", True)
    alpha = nn.Parameter(torch.full((1,), 0.5, device=DEVICE))
    gamma = nn.Parameter(torch.ones(width, device=DEVICE))
    beta = nn.Parameter(torch.zeros(width, device=DEVICE)) if shifted else None
    # a compiled module and Liger's stand beside it
    twin = 2 * [twin_of(1, width, *([width] if shifted else []))]
    x = randn(config["BT"], width, dtype=dtype_of(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def forward() -> Tensor:
        scaled = gamma * torch.tanh(alpha * x)
        return scaled if beta is None else scaled + beta

    return _modes("full", forward, lambda result: dy, twin)


@program("poly_norm")
def _poly_norm(width: int, config: dict[str, Any]) -> Step:
    eps = config["eps"]
    weight = nn.Parameter(torch.full((3,), 1.0 / 3.0, device=DEVICE))
    bias = nn.Parameter(torch.ones(1, device=DEVICE))
    twin = twin_of(3, 1)
    x = randn(config.get("BT", config.get("M", 0)), width, dtype=dtype_of(config))
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def normed(power: Tensor) -> Tensor:
        scale = torch.rsqrt(power.pow(2).mean(-1, keepdim=True) + eps)
        return power * scale

    def forward() -> Tensor:
        wide = x.to(torch.float32)
        powers = wide**3, wide**2, wide**1
        cube, square, plain = (normed(power) for power in powers)
        result = weight[0] * cube + weight[1] * square + weight[2] * plain + bias
        return result.to(x.dtype)

    return _modes(config["mode"], forward, lambda result: dy, twin)


def _queries(
    x: int, config: dict[str, Any], turned: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, int, int]:
    """Return queries, keys, their gradients, and how wide a head and how long a sequence is."""
    dtype, heads, kv_heads = dtype_of(config), config["num_q_heads"], config["num_kv_heads"]
    width, length = config.get("hidden_size", x), config.get("seq_len", x)
    head = width // heads
    q = randn(1, length, heads, head, dtype=dtype, grad=True)
    k = randn(1, length, kv_heads, head, dtype=dtype, grad=True)
    if turned:
        q, k = q.transpose(1, 2), k.transpose(1, 2)
    return q, k, torch.randn_like(q), torch.randn_like(k), head, length


@program("rope")
def _rope(x: int, config: dict[str, Any]) -> Step:
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    q, k, dq, dk, head, length = _queries(x, config, turned=True)
    dtype = dtype_of(config)
    cos, sin = (randn(1, length, head, dtype=dtype) for _ in range(2))
    positions = torch.arange(length, device=DEVICE, dtype=torch.long).unsqueeze(0)
    inverse = twin_of(head // 2)

    def step(kept: object = (positions, inverse)) -> None:
        results = apply_rotary_pos_emb(q, k, cos, sin)
        torch.autograd.grad(results, (q, k), (dq, dk), allow_unused=True, retain_graph=True)

    return step


@program("qwen2vl_mrope")
def _mrope(x: int, config: dict[str, Any]) -> Step:
    from transformers.models.llama.modeling_llama import rotate_half

    q, k, dq, dk, head, length = _queries(x, config, turned=True)
    dtype = dtype_of(config)
    cos, sin = (randn(3, 1, length, head, dtype=dtype) for _ in range(2))
    side = head * 3 // 16
    sections = 2 * [head // 2 - 2 * side, side, side]
    positions = torch.zeros(3, 1, length, dtype=torch.long, device=DEVICE)
    inverse = twin_of(head // 2)

    def mixed(angles: Tensor) -> Tensor:
        parts = angles.split(sections, dim=-1)
        return torch.cat([part[i % 3] for i, part in enumerate(parts)], dim=-1).unsqueeze(1)

    def turned(q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        mine, other = mixed(cos), mixed(sin)
        q_turned = (q * mine) + (rotate_half(q) * other)
        return q_turned, (k * mine) + (rotate_half(k) * other)

    def step(kept: object = (positions, inverse)) -> None:
        results = turned(q, k)
        torch.autograd.grad(results, (q, k), (dq, dk), allow_unused=True, retain_graph=True)

    return step


@program("llama4_rope")
def _llama4_rope(x: int, config: dict[str, Any]) -> Step:
    from transformers.models.llama4.modeling_llama4 import apply_rotary_emb

    q, k, dq, dk, head, length = _queries(x, config, turned=False)
    angles = torch.zeros(1, length, head // 2, dtype=torch.complex64, device=DEVICE)
    positions = torch.zeros(1, length, dtype=torch.long, device=DEVICE)
    inverse = twin_of(head // 2)

    def step(kept: object = (positions, inverse)) -> None:
        results = apply_rotary_emb(q, k, angles)
        torch.autograd.grad(results, (q, k), (dq, dk), allow_unused=True, retain_graph=True)

    return step


@program("multi_token_attention")
def _multi_token_attention(length: int, config: dict[str, Any]) -> Step:
    dtype, kernel, groups = dtype_of(config), config["K"], config["groups"]
    inner, outer = config["C_in"], config["C_out"]
    sizes = outer, inner // groups, kernel, kernel
    weight = nn.Parameter(torch.zeros(sizes, dtype=dtype, device=DEVICE))
    bias = None
    if config["bias"]:
        bias = nn.Parameter(torch.zeros(outer, dtype=dtype, device=DEVICE))
    twin = twin_of(weight.numel(), outer, dtype=dtype)
    x = randn(config["B"], inner, length, length, dtype=dtype)
    dy = torch.randn_like(x)
    x.requires_grad_(True)

    def forward() -> Tensor:
        seen = torch.tril(torch.ones(length, length, dtype=torch.bool, device=DEVICE))
        mask = seen.view(1, 1, length, length)
        infinity = torch.tensor(-1e9, device=DEVICE, dtype=dtype)
        zero = torch.tensor(0.0, device=DEVICE, dtype=dtype)
        masked = x.masked_fill(~mask, infinity)
        chances = F.softmax(masked, dim=-1)
        mixed = F.conv2d(chances, weight, bias, stride=1, padding=kernel // 2, groups=groups)
        return mixed.masked_fill(~mask, zero)

    return _modes("full", forward, lambda result: dy, twin)
