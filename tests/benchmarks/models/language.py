"""Language models from their public configurations, with random weights."""

from typing import Any

import transformers
from torch import nn

_GPT2 = {"n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024, "vocab_size": 50257}
_CONFIGURATIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "distilbert/distilgpt2": ("GPT2Config", "CausalLM", {**_GPT2, "n_layer": 6}),
    "openai-community/gpt2": ("GPT2Config", "CausalLM", _GPT2),
    "cerebras/Cerebras-GPT-111M": (
        "GPT2Config",
        "CausalLM",
        {
            **_GPT2,
            "n_layer": 10,
            "n_positions": 2048,
            "n_inner": 3072,
            "activation_function": "gelu",
            "attn_pdrop": 0.0,
            "embd_pdrop": 0.0,
            "resid_pdrop": 0.0,
        },
    ),
    "EleutherAI/gpt-neo-125M": (
        "GPTNeoConfig",
        "CausalLM",
        {
            "hidden_size": 768,
            "num_layers": 12,
            "num_heads": 12,
            "max_position_embeddings": 2048,
            "attention_types": [[["global", "local"], 6]],
            "window_size": 256,
            "vocab_size": 50257,
            "attention_dropout": 0.0,
            "embed_dropout": 0.0,
            "resid_dropout": 0.0,
        },
    ),
    "facebook/opt-125m": (
        "OPTConfig",
        "CausalLM",
        {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072},
    ),
    "facebook/opt-350m": (
        "OPTConfig",
        "CausalLM",
        {
            "hidden_size": 1024,
            "num_hidden_layers": 24,
            "num_attention_heads": 16,
            "ffn_dim": 4096,
            "word_embed_proj_dim": 512,
            "do_layer_norm_before": False,
        },
    ),
    "T5-small": (
        "T5Config",
        "Seq2SeqLM",
        {
            "d_model": 512,
            "num_layers": 6,
            "num_heads": 8,
            "d_ff": 2048,
            "vocab_size": 32128,
            "decoder_start_token_id": 0,
        },
    ),
    "t5-base": (
        "T5Config",
        "Seq2SeqLM",
        {
            "d_model": 768,
            "num_layers": 12,
            "num_heads": 12,
            "d_ff": 3072,
            "vocab_size": 32128,
            "decoder_start_token_id": 0,
        },
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": (
        "Qwen2Config",
        "CausalLM",
        {
            "hidden_size": 1536,
            "intermediate_size": 8960,
            "num_hidden_layers": 28,
            "num_attention_heads": 12,
            "num_key_value_heads": 2,
            "vocab_size": 151936,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": False,
        },
    ),
    "google/gemma-2-2b-it": (
        "Gemma2Config",
        "CausalLM",
        {
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "vocab_size": 256000,
            "query_pre_attn_scalar": 256,
            "sliding_window": 4096,
            "attn_logit_softcapping": 50.0,
            "final_logit_softcapping": 30.0,
        },
    ),
}
"""The class of a model's configuration, what it is trained for, and what differs from defaults."""

PARAMETERS = {
    "distilbert/distilgpt2": 81_912_576,
    "openai-community/gpt2": 124_439_808,
    "cerebras/Cerebras-GPT-111M": 111_050_496,
    "EleutherAI/gpt-neo-125M": 125_198_592,
    "facebook/opt-125m": 125_239_296,
    "facebook/opt-350m": 331_196_416,
    "T5-small": 60_506_624,
    "t5-base": 222_903_552,
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": 1_777_088_000,
    "google/gemma-2-2b-it": 2_614_341_888,
}
"""As their weights were published."""

EAGER = ("GPTNeoConfig", "T5Config", "Gemma2Config")
"""Whose attention is written out in torch operators by default in transformers 4.51."""


def language_model(name: str) -> nn.Module:
    """Return a model in training mode, fp32."""
    kind, task, differs = _CONFIGURATIONS[name]
    config = getattr(transformers, kind)(**differs)
    chosen = "eager" if kind in EAGER else "sdpa"
    auto = getattr(transformers, f"AutoModelFor{task}")
    return auto.from_config(config, attn_implementation=chosen).train()


def is_language_model(name: str) -> bool:
    """Whether there is a language model of this name."""
    return name in _CONFIGURATIONS
