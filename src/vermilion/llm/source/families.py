"""The architectures that are read: one row each, by their names in GGUF and in `config.json`.

Sources: the modelling files of huggingface/transformers 5.24; for GGUF, ggml-org/llama.cpp,
`src/llama-arch.cpp` (names) and `gguf-py/gguf/constants.py`. A test makes a model of random weights
of each and holds its logits against those of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from vermilion.codegen.emit.decoder.row import NormKind, Source
from vermilion.llm.source.mixtures import MIXTURES, MixtureRow

# Where a layer norms: what its parts read; what they read and what they give; what they give.
Places = Literal["before", "both", "after"]
# Norms of queries and keys: none; of each head, of each where there are weights, of each once it is
# turned, of whole rows.
QkNorm = Literal["", "head", "some", "turned", "row"]
# Which layers have a window where a configuration has one and does not list them: all; all but
# every n-th (n < 0: every n-th alone).
Windows = int


@dataclass(frozen=True)
class Family:
    """What the decoders of a family have in common.

    `pairs`: heads turn numbers that lie side by side, in GGUF and in a configuration's weights;
    else those half of the turned part apart. `offset` is added to the weights of norms in a
    folder. `every`: of as many layers one sees all, where a file or a configuration has a window;
    0: none does.
    """

    gguf: str
    configs: tuple[str, ...]
    norm: NormKind = "rms"
    places: Places = "before"
    qk_norm: QkNorm = ""
    activation: Source = "silu"
    is_gated: bool = True
    is_parallel: bool = False  # attention and the rest of a layer read the same rows
    gguf_pairs: bool = False
    config_pairs: bool = False
    offset: float = 0.0
    every: int = 0
    plain_every: int = 0  # one of so many layers turns nothing
    is_plain_beside_windows: bool = False  # and none of them where no layer has a window
    has_scaled_embedding: bool = False
    local_base: float = 0.0  # of layers with a window, where they are turned otherwise
    has_plain_windows: bool = False  # layers with a window turn by no rule but the base
    head_share: float = 1.0  # of a head is turned, where nothing says it
    may_turn_part: bool = False  # a configuration may say that a part of a head is turned
    has_dense_folders: bool = False  # mixtures of this name are GGUF files alone
    has_convolutions: bool = False  # short ones, in the place of some layers' attention
    has_tied_folders: bool = False  # the head has the embedding's weights, where nothing says it
    has_plain_norms: bool = False  # norms have no weights
    has_sinks: bool = False  # each head has a score that no key has
    is_truncated: bool = True  # yarn's edges are rounded to whole pairs, where a file says nothing
    # Names in a folder, and in a GGUF file, where they are not the usual ones.
    names: Mapping[str, str] | None = None
    gguf_names: Mapping[str, str] | None = None

    @property
    def mixture(self) -> MixtureRow | None:
        """How its mixtures of experts choose; None where it has none."""
        return MIXTURES.get(self.gguf)


_POST = {
    "attn_post_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
_AFTER = {
    "attn_post_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_feedforward_layernorm",
}
_GLM4 = {
    "attn_post_norm": "post_self_attn_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_post_norm": "post_mlp_layernorm",
}
_PHI = {
    "attn_output": "self_attn.dense",
    "ffn_up": "mlp.fc1",
    "ffn_down": "mlp.fc2",
    "output_norm": "model.final_layernorm",
}

_HUNYUAN = {
    "attn_q_norm": "self_attn.query_layernorm",
    "attn_k_norm": "self_attn.key_layernorm",
}
_LFM2 = {
    "output_norm": "model.embedding_norm", "attn_norm": "operator_norm", "ffn_norm": "ffn_norm",
    "attn_output": "self_attn.out_proj", "attn_q_norm": "self_attn.q_layernorm",
    "attn_k_norm": "self_attn.k_layernorm", "ffn_gate": "feed_forward.w1",
    "ffn_up": "feed_forward.w3", "ffn_down": "feed_forward.w2", "shortconv_conv": "conv.conv",
    "shortconv_in_proj": "conv.in_proj", "shortconv_out_proj": "conv.out_proj",
}  # fmt: skip
_LFM2_GGUF = {
    "output_norm": "token_embd_norm",
    **{f"shortconv_{one}": f"shortconv.{one}" for one in ("conv", "in_proj", "out_proj")},
}
_LFM2_MOE = {
    **_LFM2, "ffn_gate_inp": "feed_forward.gate", "exp_probs_b": "feed_forward.expert_bias",
}  # fmt: skip
_AFTER_ATTENTION = {"ffn_norm": "post_attention_norm"}
_MIXTRAL = {"ffn_gate_inp": "block_sparse_moe.gate"}
_GRANITE_MOE = {
    "ffn_gate_inp": "block_sparse_moe.router.layer", "ffn_up_shexp": "shared_mlp.input_linear",
    "ffn_down_shexp": "shared_mlp.output_linear",
}  # fmt: skip
_QWEN2_MOE = {
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    **{f"ffn_{one}_shexp": f"mlp.shared_expert.{one}_proj" for one in ("gate", "up", "down")},
}
_SHARED = {f"ffn_{one}_shexp": f"mlp.shared_experts.{one}_proj" for one in ("gate", "up", "down")}
_ERNIE_MOE = {**_SHARED, "exp_probs_b": "mlp.moe_statics.e_score_correction_bias"}
_GLM4_MOE = {**_SHARED, "exp_probs_b": "mlp.gate.e_score_correction_bias"}

FAMILIES: tuple[Family, ...] = (
    Family("llama", ("llama", "mistral", "ministral"), gguf_pairs=True, has_dense_folders=True),
    Family("qwen2", ("qwen2",)),
    Family("qwen3", ("qwen3",), qk_norm="head"),
    Family("phi3", ("phi3",), may_turn_part=True),
    Family(
        "gemma", ("gemma",), activation="gelu_tanh", offset=1.0, has_scaled_embedding=True,
        has_tied_folders=True,
    ),
    Family(
        "gemma2", ("gemma2",), places="both", activation="gelu_tanh", offset=1.0, every=2,
        has_scaled_embedding=True, has_tied_folders=True, names=_POST,
    ),
    Family(
        "gemma3", ("gemma3_text",), places="both", qk_norm="head", activation="gelu_tanh",
        offset=1.0, every=6, has_scaled_embedding=True, has_tied_folders=True,
        local_base=10000.0, names=_POST,
    ),
    Family("granite", ("granite",), gguf_pairs=True),
    Family("smollm3", ("smollm3",), gguf_pairs=True, plain_every=4),
    Family(
        "olmo2", ("olmo2", "olmo3"), places="after", qk_norm="row", every=4,
        has_plain_windows=True, names=_AFTER,
    ),
    Family("olmo", ("olmo",), norm="layer", has_plain_norms=True, gguf_pairs=True),
    Family("ernie4_5", ("ernie4_5",), gguf_pairs=True, config_pairs=True),
    Family(
        "phi2", ("phi",), norm="layer", activation="gelu_tanh", is_gated=False, is_parallel=True,
        head_share=0.5, may_turn_part=True, names=_PHI,
    ),
    Family(
        "nemotron", ("nemotron",), norm="layer", activation="relu_squared", is_gated=False,
        offset=1.0, head_share=0.5, may_turn_part=True,
    ),
    Family(
        "starcoder2", ("starcoder2",), norm="layer", activation="gelu_tanh", is_gated=False,
        names={"ffn_up": "mlp.c_fc", "ffn_down": "mlp.c_proj"},
    ),
    Family("stablelm", ("stablelm",), norm="layer", head_share=0.25, may_turn_part=True),
    Family("seed_oss", ("seed_oss",)),
    Family("arcee", ("arcee",), activation="relu_squared", is_gated=False, gguf_pairs=True),
    Family(
        "command-r", ("cohere",), norm="layer", is_parallel=True, gguf_pairs=True,
        config_pairs=True,
    ),
    Family(
        "glm4", ("glm4",), places="both", gguf_pairs=True, config_pairs=True, head_share=0.5,
        may_turn_part=True, names=_GLM4,
    ),
    Family(
        "cohere2", ("cohere2",), norm="layer", is_parallel=True, gguf_pairs=True,
        config_pairs=True, every=4, plain_every=4,
    ),
    Family(
        "exaone4", ("exaone4",), places="after", qk_norm="head", every=4, plain_every=4,
        is_plain_beside_windows=True, names=_AFTER,
    ),
    Family("hunyuan-dense", ("hunyuan_v1_dense",), qk_norm="turned", names=_HUNYUAN),
    Family(
        "lfm2", ("lfm2",), qk_norm="head", has_convolutions=True, has_tied_folders=True,
        names=_LFM2, gguf_names=_LFM2_GGUF,
    ),
    Family("llama", ("mixtral",), gguf_pairs=True, names=_MIXTRAL),
    Family("qwen2moe", ("qwen2_moe",), names=_QWEN2_MOE),
    Family("qwen3moe", ("qwen3_moe",), qk_norm="head"),
    Family("olmoe", ("olmoe",), qk_norm="row"),
    Family("granitemoe", ("granitemoe", "granitemoeshared"), gguf_pairs=True, names=_GRANITE_MOE),
    Family(
        "ernie4_5-moe", ("ernie4_5_moe",), gguf_pairs=True, config_pairs=True, names=_ERNIE_MOE
    ),
    Family(
        "glm4moe", ("glm4_moe",), qk_norm="some", head_share=0.5, may_turn_part=True,
        names=_GLM4_MOE, gguf_names=_AFTER_ATTENTION,
    ),
    Family(
        "lfm2moe", ("lfm2_moe",), qk_norm="head", has_convolutions=True, has_tied_folders=True,
        names=_LFM2_MOE, gguf_names=_LFM2_GGUF,
    ),
    Family(
        "gpt-oss", ("gpt_oss",), has_sinks=True, every=2, is_truncated=False,
        names={"ffn_gate_inp": "mlp.router"}, gguf_names=_AFTER_ATTENTION,
    ),
)  # fmt: skip

# What is known by name and cannot be computed: for the reason, which is what an error says.
REFUSED: Mapping[str, str] = {
    "bert": "it reads text in both directions, and gives no next token",
    "nomic-bert": "it reads text in both directions, and gives no next token",
    "jina-bert-v2": "it reads text in both directions, and gives no next token",
    "xlm-roberta": "it reads text in both directions, and gives no next token",
    "modernbert": "it reads text in both directions, and gives no next token",
    "t5": "it has an encoder",
    "t5encoder": "it has an encoder",
    "mamba": "it has state-space layers",
    "mamba2": "it has state-space layers",
    "jamba": "it has state-space layers",
    "granitehybrid": "it has state-space layers",
    "granitemoehybrid": "it has state-space layers",
    "nemotron_h": "it has state-space layers",
    "falcon-h1": "it has state-space layers",
    "rwkv6": "it has recurrent layers",
    "rwkv7": "it has recurrent layers",
    "qwen3next": "it has gated delta-rule layers",
    "qwen3_next": "it has gated delta-rule layers",
    "qwen35": "it has gated delta-rule layers",
    "qwen35moe": "it has gated delta-rule layers",
    "qwen3_5": "it has gated delta-rule layers",
    "qwen3_5_text": "it has gated delta-rule layers",
    "qwen3_5_moe": "it has gated delta-rule layers",
    "deepseek2": "its keys and values are compressed (multi-head latent attention)",
    "deepseek_v2": "its keys and values are compressed (multi-head latent attention)",
    "deepseek_v3": "its keys and values are compressed (multi-head latent attention)",
    "llama4": "it is a mixture of experts with chunked attention",
    "llama4_text": "it is a mixture of experts with chunked attention",
    "phimoe": "its experts are chosen one after the other (sparse mixer)",
    **dict.fromkeys(
        (
            "gemma3",
            "mistral3",
            "qwen2_vl",
            "qwen2_5_vl",
            "qwen3_vl",
            "llava",
            "mllama",
            "phi3_v",
            "phi4_multimodal",
            "idefics3",
            "smolvlm",
            "internvl",
            "lfm2_vl",
        ),
        "it reads images or sound, too, and only models of text alone are read",
    ),
    "ministral3": "its queries are scaled by their position",
    "clip": "it is the part of a model that reads images",
    "gemma3n": "it has alternating updates and embeddings of each layer",
    "gemma3n_text": "it has alternating updates and embeddings of each layer",
    "gemma4": "it has embeddings of each layer and shared caches",
    "gemma4_text": "it has embeddings of each layer and shared caches",
    "gpt2": "its positions are learned",
    "gptneox": "its queries, keys and values lie mixed",
    "gpt_neox": "its queries, keys and values lie mixed",
    "falcon": "its queries, keys and values lie mixed",
    "bloom": "its positions are biases of attention",
    "mpt": "its positions are biases of attention",
}
