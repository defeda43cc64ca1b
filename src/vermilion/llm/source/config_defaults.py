"""What a configuration says by leaving it out: the defaults of its class in transformers.

A file may lack a field that has its class's default, so one default for all families would give
other tokens without a word. A field that is there and null is null.

Source: the configuration files of huggingface/transformers 5.24. A test holds every row against
the installed classes.
"""

from __future__ import annotations

from collections.abc import Mapping

Fields = Mapping[str, object]

# Fields that mean the same: where one of a group is given, the default of another says nothing.
ALIASES: tuple[tuple[str, ...], ...] = (
    ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"),
    ("num_experts_per_tok", "moe_k"),
    ("rope_parameters", "rope_scaling"),
)

_SMALL: Fields = {"rms_norm_eps": 1e-6}
_LARGE: Fields = {"rms_norm_eps": 1e-5}
_NO_WINDOWS: Fields = {"use_sliding_window": False, "sliding_window": 4096, "max_window_layers": 28}
_MISTRAL: Fields = {**_SMALL, "num_key_value_heads": 8, "sliding_window": 4096}
_GEMMA: Fields = {
    **_SMALL, "head_dim": 256, "num_key_value_heads": 4, "query_pre_attn_scalar": 256,
    "sliding_window": 4096, "tie_word_embeddings": True,
}  # fmt: skip
_COHERE: Fields = {"layer_norm_eps": 1e-5, "logit_scale": 0.0625, "tie_word_embeddings": True}
_GRANITE: Fields = {**_SMALL, "attention_multiplier": 1.0}
_GRANITE_MOE: Fields = {**_GRANITE, "num_local_experts": 8, "num_experts_per_tok": 2}
_ERNIE: Fields = {**_LARGE, "rope_theta": 5e5, "tie_word_embeddings": True}
_LFM2: Fields = {
    "norm_eps": 1e-5, "num_key_value_heads": 8, "conv_L_cache": 3, "rope_theta": 1e6,
    "tie_word_embeddings": True,
}  # fmt: skip

DEFAULTS: Mapping[str, Fields] = {
    "llama": _SMALL,
    "mistral": _MISTRAL,
    "ministral": _MISTRAL,
    "qwen2": {**_SMALL, **_NO_WINDOWS, "num_key_value_heads": 32},
    "qwen3": {**_SMALL, **_NO_WINDOWS, "num_key_value_heads": 32, "head_dim": 128},
    "phi3": {**_LARGE, "original_max_position_embeddings": 4096},
    "gemma": {**_SMALL, "head_dim": 256, "num_key_value_heads": 16, "tie_word_embeddings": True},
    "gemma2": {**_GEMMA, "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
    "gemma3_text": {**_GEMMA, "rope_theta": 1e6},
    "granite": _GRANITE,
    "smollm3": {
        **_SMALL, "num_key_value_heads": 4, "no_rope_layer_interval": 4,
        "use_sliding_window": False, "rope_theta": 2e6, "tie_word_embeddings": True,
    },
    "olmo2": _LARGE,
    "olmo3": {**_LARGE, "sliding_window": 4096, "rope_theta": 5e5},
    "olmo": {},
    "ernie4_5": {**_ERNIE, "head_dim": 128, "num_key_value_heads": 2},
    "phi": {"layer_norm_eps": 1e-5},
    "nemotron": {"norm_eps": 1e-5},
    "starcoder2": {"norm_epsilon": 1e-5, "num_key_value_heads": 2, "tie_word_embeddings": True},
    "stablelm": {"layer_norm_eps": 1e-5, "num_key_value_heads": 32},
    "seed_oss": {**_SMALL, "head_dim": 128, "num_key_value_heads": 8},
    "arcee": _LARGE,
    "cohere": {**_COHERE, "rope_theta": 5e5},
    "glm4": {"rms_norm_eps": 1.5625e-7, "head_dim": 128, "num_key_value_heads": 2},
    "cohere2": {**_COHERE, "sliding_window": 4096},
    "exaone4": {**_LARGE, "num_key_value_heads": 32, "sliding_window": 4096},
    "hunyuan_v1_dense": _LARGE,
    "lfm2": _LFM2,
    "mixtral": {
        **_LARGE, "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2,
        "rope_theta": 1e6,
    },
    "qwen2_moe": {
        **_SMALL, **_NO_WINDOWS, "num_key_value_heads": 16, "num_experts": 60,
        "num_experts_per_tok": 4, "norm_topk_prob": False,
    },
    "qwen3_moe": {
        **_SMALL, **_NO_WINDOWS, "num_key_value_heads": 4, "num_local_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": False,
    },
    "olmoe": {**_LARGE, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False},
    "granitemoe": _GRANITE_MOE,
    "granitemoeshared": _GRANITE_MOE,
    "ernie4_5_moe": {
        **_ERNIE, "num_key_value_heads": 4, "moe_num_experts": 64, "moe_k": 6,
        "moe_layer_start_index": 1,
    },
    "glm4_moe": {
        **_LARGE, "num_key_value_heads": 8, "n_routed_experts": 128, "num_experts_per_tok": 8,
        "first_k_dense_replace": 1,
    },
    "lfm2_moe": {
        **_LFM2, "num_experts": 32, "num_experts_per_tok": 4, "num_dense_layers": 2,
        "norm_topk_prob": True,
    },
    "gpt_oss": {
        **_LARGE, "head_dim": 64, "num_key_value_heads": 8, "num_local_experts": 128,
        "num_experts_per_tok": 4, "sliding_window": 128, "rope_theta": 1.5e5,
        "rope_parameters": {
            "rope_type": "yarn", "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4096,
        },
    },
}  # fmt: skip


def with_defaults(fields: Fields) -> Fields:
    """Return the fields of a configuration with those that its class gives it."""
    own = DEFAULTS.get(str(fields.get("model_type")), {})
    said = {name for group in ALIASES if fields.keys() & set(group) for name in group}
    return {name: value for name, value in own.items() if name not in said} | dict(fields)
