"""Small models of random weights of every architecture, as transformers makes and saves them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

VOCABULARY, CONTEXT = 160, 128


@dataclass(frozen=True)
class RandomModel:
    """A configuration's class, by what stands before `Config` and `ForCausalLM`, and its fields."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    config: str = ""

    def make(self) -> Any:
        import torch
        import transformers

        torch.manual_seed(3)
        base: dict[str, Any] = {
            "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 96,
            "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
            "max_position_embeddings": CONTEXT, "bos_token_id": 0, "eos_token_id": 1,
            "pad_token_id": 2, "initializer_range": 0.2,
        }  # fmt: skip
        kind = getattr(transformers, self.config or f"{self.name}Config")
        model = getattr(transformers, f"{self.name}ForCausalLM")(kind(**base | self.fields))
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if "norm" in name:
                    weight.add_(0.2 * torch.randn_like(weight))
                elif name.endswith("bias"):
                    weight.add_(0.1 * torch.randn_like(weight))
                elif name.endswith("sinks"):
                    weight.copy_(torch.randn_like(weight))
                elif name.endswith(("gate.weight", "router.weight")):
                    # Scores that are far apart: which experts are chosen follows from no rounding.
                    weight.copy_(0.4 * torch.randn_like(weight))
            for name, values in model.named_buffers():
                if name.endswith(("e_score_correction_bias", "expert_bias")):
                    values.copy_(0.2 * torch.randn_like(values))
        return model.eval().float()

    def save(self, folder: Path) -> Any:
        """Save the model; return it."""
        model = self.make()
        model.save_pretrained(folder)
        return model


def logits_of_torch(model: Any, tokens: list[int]) -> Any:
    import torch

    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].double().numpy()


def packed_microscaled(folder: Path, model: Any) -> Any:
    """Store the experts of a saved gpt-oss in MXFP4; return the model with the numbers that have.

    (experts, depth, columns) → blocks (experts, columns, blocks, 16) of two codes a byte, the
    first in the low half, and exponents.
    """
    import torch
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    stored = load_file(file)
    values = torch.tensor([0.0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6])
    own = dict(model.named_parameters())
    for name in [
        one for one in stored if one.endswith(("experts.gate_up_proj", "experts.down_proj"))
    ]:
        weight = stored.pop(name).float().transpose(1, 2).contiguous()
        blocks = weight.reshape(*weight.shape[:2], -1, 32)
        exponents = torch.frexp(blocks.abs().amax(-1).clamp_min(1e-30))[1] - 3
        scaled = blocks * torch.exp2(-exponents.float())[..., None]
        codes = (scaled[..., None] - values).abs().argmin(-1)
        stored[f"{name}_blocks"] = (codes[..., ::2] | (codes[..., 1::2] << 4)).to(torch.uint8)
        stored[f"{name}_scales"] = (exponents + 127).to(torch.uint8)
        rounded = (values[codes] * torch.exp2(exponents.float())[..., None]).reshape(weight.shape)
        own[name].data.copy_(rounded.transpose(1, 2))
    save_file(stored, file)
    return model


_SMALL = {"head_dim": 16}
_WINDOW = {"sliding_window": 6}
_EIGHT = {"num_local_experts": 8, "num_experts_per_tok": 3}
_NARROW = {"moe_intermediate_size": 48}
_LONG = {
    "type": "longrope",
    "rope_type": "longrope",
    "short_factor": [1 + 0.02 * i for i in range(8)],
    "long_factor": [1 + 0.3 * i for i in range(8)],
}
MODELS = {
    "llama": RandomModel("Llama"),
    "llama, tied": RandomModel("Llama", {"tie_word_embeddings": True}),
    "llama 3 rope": RandomModel(
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama, linear rope": RandomModel(
        "Llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}}
    ),
    "llama, yarn": RandomModel(
        "Llama",
        {
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0,
                "original_max_position_embeddings": 32,
            }
        },
    ),
    "llama, biases": RandomModel("Llama", {"attention_bias": True, "mlp_bias": True}),
    "mistral": RandomModel("Mistral", _SMALL | _WINDOW),
    "mistral, no window": RandomModel("Mistral", {**_SMALL, "sliding_window": None}),
    "qwen2": RandomModel("Qwen2"),
    "qwen2, windows": RandomModel(
        "Qwen2", {"use_sliding_window": True, "max_window_layers": 2, **_WINDOW}
    ),
    "qwen3": RandomModel("Qwen3", _SMALL),
    "phi3": RandomModel("Phi3", {"sliding_window": None}),
    "phi3, window": RandomModel("Phi3", _WINDOW),
    "phi3, long rope": RandomModel(
        "Phi3",
        {
            "sliding_window": None, "rope_parameters": {**_LONG, "rope_theta": 1e4},
            "original_max_position_embeddings": 16,
        },
    ),
    "phi4, part of a head": RandomModel(
        "Phi3",
        {"sliding_window": None, "partial_rotary_factor": 0.5, "tie_word_embeddings": True},
    ),
    "gemma": RandomModel("Gemma", _SMALL),
    "gemma2": RandomModel("Gemma2", {**_SMALL, **_WINDOW, "query_pre_attn_scalar": 24}),
    "gemma3": RandomModel(
        "Gemma3", {**_SMALL, **_WINDOW, "query_pre_attn_scalar": 24, "num_hidden_layers": 7},
        "Gemma3TextConfig",
    ),
    "granite": RandomModel(
        "Granite",
        {
            "embedding_multiplier": 6.0, "attention_multiplier": 0.3, "residual_multiplier": 0.4,
            "logits_scaling": 3.0,
        },
    ),
    "smollm3": RandomModel("SmolLM3"),
    "olmo": RandomModel("Olmo", {"clip_qkv": None}),
    "olmo2": RandomModel("Olmo2"),
    "olmo3": RandomModel("Olmo3", {**_WINDOW}),
    "ernie 4.5": RandomModel("Ernie4_5", _SMALL),
    "phi": RandomModel("Phi", {"num_key_value_heads": 4, "partial_rotary_factor": 0.5}),
    "nemotron": RandomModel("Nemotron", _SMALL),
    "starcoder2": RandomModel("Starcoder2", {"use_bias": True, **_WINDOW}),
    "stablelm": RandomModel("StableLm", {"num_hidden_layers": 2}),
    "seed oss": RandomModel("SeedOss", _SMALL),
    "arcee": RandomModel("Arcee"),
    "cohere": RandomModel("Cohere", {"logit_scale": 0.3}),
    "glm4": RandomModel("Glm4", {**_SMALL, "partial_rotary_factor": 0.5, "attention_bias": True}),
    "exaone4": RandomModel("Exaone4", {**_SMALL, **_WINDOW}),
    "exaone4, no windows": RandomModel("Exaone4", {**_SMALL, "sliding_window": None,
                                                   "layer_types": ["full_attention"] * 4}),
    "hunyuan": RandomModel(
        "HunYuanDenseV1",
        {
            **_SMALL,
            "rope_parameters": {
                "rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 50.0,
            },
        },
    ),
    "lfm2": RandomModel(
        "Lfm2",
        {
            "layer_types": ["conv", "full_attention", "conv", "full_attention", "conv", "conv"],
            "num_hidden_layers": 6, "block_multiple_of": 16, "block_ffn_dim_multiplier": 1.2,
        },
    ),
    "lfm2, biases": RandomModel(
        "Lfm2",
        {
            "layer_types": ["full_attention", "conv", "full_attention"], "num_hidden_layers": 3,
            "conv_bias": True, "conv_L_cache": 4, "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": False,
        },
    ),
    "lfm2 moe": RandomModel(
        "Lfm2Moe",
        {
            **_NARROW, "layer_types": ["conv", "full_attention", "conv"], "num_hidden_layers": 3,
            "num_dense_layers": 1, "num_experts": 8, "num_experts_per_tok": 3,
            "routed_scaling_factor": 1.5,
        },
    ),
    "mixtral": RandomModel("Mixtral", _EIGHT),
    "qwen2 moe": RandomModel(
        "Qwen2Moe",
        {
            **_NARROW, "num_experts": 6, "num_experts_per_tok": 3, "decoder_sparse_step": 2,
            "shared_expert_intermediate_size": 48,
        },
    ),
    "qwen3 moe": RandomModel(
        "Qwen3Moe",
        {**_SMALL, **_NARROW, "num_experts": 10, "num_experts_per_tok": 4, "norm_topk_prob": True},
    ),
    "olmoe": RandomModel("Olmoe", {"num_experts": 8, "num_experts_per_tok": 3}),
    "granite moe": RandomModel(
        "GraniteMoe",
        {
            **_EIGHT, "embedding_multiplier": 6.0, "attention_multiplier": 0.3,
            "residual_multiplier": 0.4, "logits_scaling": 3.0,
        },
    ),
    "granite moe, shared": RandomModel(
        "GraniteMoeShared", {**_EIGHT, "shared_intermediate_size": 48}
    ),
    "ernie 4.5 moe": RandomModel(
        "Ernie4_5_Moe",
        {
            **_SMALL, **_NARROW, "moe_num_experts": 8, "moe_k": 3, "moe_num_shared_experts": 2,
            "moe_layer_start_index": 1,
        },
    ),
    "glm4 moe": RandomModel(
        "Glm4Moe",
        {
            **_SMALL, **_NARROW, "n_routed_experts": 8, "num_experts_per_tok": 3,
            "n_shared_experts": 1, "first_k_dense_replace": 1, "routed_scaling_factor": 1.5,
            "use_qk_norm": True, "attention_bias": True, "n_group": 1, "topk_group": 1,
        },
    ),
    "gpt-oss": RandomModel(
        "GptOss",
        {
            **_SMALL, **_WINDOW, "num_local_experts": 8, "num_experts_per_tok": 3,
            "rope_parameters": {
                "rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "beta_fast": 32.0,
                "beta_slow": 1.0, "truncate": False, "original_max_position_embeddings": 32,
            },
        },
    ),
    "cohere2": RandomModel("Cohere2", {**_WINDOW, "logit_scale": 0.4}),
}  # fmt: skip
