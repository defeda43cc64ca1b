"""A Hugging Face folder's `config.json` → its blueprint.

Source: the configuration and modelling files of huggingface/transformers 5.24.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from vermilion.codegen.emit.decoder.row import Source
from vermilion.errors import ModelError, UnsupportedError
from vermilion.files import read_object
from vermilion.llm.source.blueprint import MOST_MEASURE, Blueprint, Layer
from vermilion.llm.source.config_defaults import with_defaults
from vermilion.llm.source.families import FAMILIES, Family
from vermilion.llm.source.mixtures import (
    CHOSEN,
    EXPERTS,
    Mixture,
    check_clamps,
    check_groups,
    mixed_layers,
    mixture_of,
)
from vermilion.llm.source.read_gguf import refused
from vermilion.llm.source.rope import RopeFacts, Turning, turning_of

_ACTIVATIONS: Mapping[str, Source] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "relu2": "relu_squared",
}
# What changes the tokens and is not computed, where a configuration has it.
_NOT_COMPUTED = (
    "clip_qkv", "attention_chunk_size",
    "qk_layernorm", "use_parallel_residual", "attn_temperature_tuning",
    "use_bidirectional_attention", "kv_lora_rank", "is_encoder_decoder", "add_cross_attention",
)  # fmt: skip
# Whose configurations may say which layers have a window without a list of them.
_WITH_PATTERNS = ("gemma3_text", "cohere2", "exaone4")
_GRANITE = ("granite", "granitemoe", "granitemoeshared")
# What only the classes of some models compute: the others leave it alone, and what its writer
# meant is not known. The number by which it changes nothing, and the models.
_COMPUTED_BY_SOME: Mapping[str, tuple[float, tuple[str, ...]]] = {
    "attn_logit_softcapping": (0.0, ("gemma2",)),
    "final_logit_softcapping": (0.0, ("gemma2", "gemma3_text")),
    "attention_multiplier": (0.0, _GRANITE),
    "embedding_multiplier": (1.0, _GRANITE),
    "residual_multiplier": (1.0, _GRANITE),
    "sliding_window": (
        0.0,
        (
            "mistral", "ministral", "mixtral", "qwen2", "qwen3", "qwen2_moe", "qwen3_moe", "phi3",
            "gemma2", "gemma3_text", "smollm3", "olmo3", "starcoder2", "cohere2", "exaone4",
            "gpt_oss",
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Config:
    """The fields of a configuration."""

    fields: Mapping[str, object]
    where: str

    def whole(self, *names: str, default: int = 0) -> int:
        """Return a measure, by the first of its names that is there."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int):
                raise self._wrong(name, value, "a whole number above zero")
            if not 0 < value <= MOST_MEASURE:
                raise self._wrong(name, value, "a whole number above zero")
            return value
        if default > 0:
            return default
        raise ModelError(
            f"`{names[0]}` is missing",
            where=self.where,
            hint="this is not the configuration of a decoder",
        )

    def number(self, *names: str, default: float = 0.0) -> float:
        """Return a number, by the first of its names that is there."""
        for name in names:
            value = self.fields.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise self._wrong(name, value, "a number")
            if not math.isfinite(value):
                raise self._wrong(name, value, "a number")
            return float(value)
        return default

    def _wrong(self, name: str, value: object, what: str) -> ModelError:
        return ModelError(
            f"`{name}` is {value!r}, not {what}",
            where=self.where,
            hint="the file is damaged: download it again",
        )


def read_config(folder: Path) -> tuple[Config, Family]:
    """Return a folder's configuration and its family.

    Raises: ModelError, UnsupportedError.
    """
    path = folder / "config.json"
    fields = read_object(path)
    kind = fields.get("model_type")
    if not isinstance(kind, str):
        raise ModelError(
            "this is no model's configuration: it has no `model_type`",
            where=str(path),
            hint="name the folder of a Hugging Face model",
        )
    family = next((one for one in FAMILIES if kind in one.configs), None)
    if family is None:
        known = [name for one in FAMILIES for name in one.configs]
        raise refused(kind, str(path), known)
    refused_fields = [*_NOT_COMPUTED]
    if family.mixture is None or family.has_dense_folders:
        refused_fields += EXPERTS
    if family.qk_norm != "some":
        refused_fields.append("use_qk_norm")
    for name, (plain, kinds) in _COMPUTED_BY_SOME.items():
        is_off = name == "sliding_window" and fields.get("use_sliding_window") is False
        if kind not in kinds and fields.get(name) != plain and not is_off:
            refused_fields.append(name)
    for name in refused_fields:
        if fields.get(name):
            raise UnsupportedError(
                f"`{name}` = {fields[name]!r} of a `{kind}` is not computed here", where=str(path)
            )
    return Config(with_defaults(fields), str(path)), family


def blueprint_of(config: Config, family: Family) -> Blueprint:
    """Return what the decoder is like.

    Raises: ModelError for measures that are missing or cannot be; UnsupportedError for what is not
    computed here.
    """
    hidden, heads = config.whole("hidden_size"), config.whole("num_attention_heads")
    size = config.whole("head_dim", default=max(1, hidden // heads))
    scale = config.number("attention_multiplier") or 1 / math.sqrt(size)
    if family.gguf in ("gemma2", "gemma3"):
        scale = 1 / math.sqrt(config.number("query_pre_attn_scalar", default=256.0))
    is_granite = family.gguf.startswith("granite")
    divisor = config.number("logits_scaling", default=1.0) if is_granite else 1.0
    factor = (
        config.number("logit_scale", default=1.0)
        if family.gguf in ("cohere2", "command-r")
        else 1.0
    )
    turned = _turned(config, family, size)
    mixture = _mixture(config, family)
    return Blueprint(
        family=family, where=config.where, hidden=hidden, heads=heads,
        key_heads=config.whole("num_key_value_heads", default=heads), head_size=size,
        inner=_inner(config, family),
        context=config.whole("max_position_embeddings"),
        layers=_layers(config, family, turned, has_mixture=mixture is not None),
        mixture=mixture,
        turned=turned,
        epsilon=config.number(
            "rms_norm_eps", "layer_norm_eps", "norm_epsilon", "norm_eps", default=1e-5
        ),
        scale=scale, has_pairs=family.config_pairs, norm_offset=family.offset,
        activation=_activation(config, family),
        score_bound=config.number("attn_logit_softcapping"),
        logits_bound=config.number("final_logit_softcapping"),
        logits_factor=factor / divisor,
        embedding_factor=math.sqrt(hidden) if family.has_scaled_embedding
        else config.number("embedding_multiplier", default=1.0),
        residual_factor=config.number("residual_multiplier", default=1.0),
    )  # fmt: skip


def _activation(config: Config, family: Family) -> Source:
    own, other = config.fields.get("hidden_activation"), config.fields.get("hidden_act")
    given = own or other
    if given is None or (family.has_scaled_embedding and not own and other == "gelu"):
        return family.activation  # Gemma's first configurations name the exact one, and mean this
    found = _ACTIVATIONS.get(str(given))
    if found is None:
        raise UnsupportedError(f"the activation `{given}` is not known here", where=config.where)
    return found


def _inner(config: Config, family: Family) -> int:
    """Return the size inside a layer."""
    names = ("block_ff_dim", "intermediate_size")
    size = config.whole(*(names if family.has_convolutions else names[1:]))
    if family.gguf != "lfm2" or config.fields.get("block_auto_adjust_ff_dim") is False:
        return size
    size = int(config.number("block_ffn_dim_multiplier", default=1.0) * int(2 * size / 3))
    multiple = config.whole("block_multiple_of", default=256)
    return -(-size // multiple) * multiple


def _turned(config: Config, family: Family, size: int) -> int:
    own = _rope_rule(config).get("partial_rotary_factor")
    share = own if isinstance(own, int | float) else None
    if share is None:
        share = config.number("partial_rotary_factor", "rope_pct", default=family.head_share)
    if not 0 < share <= 1:
        raise ModelError(f"{share} of a head is turned", where=config.where)
    if share != 1 and not family.may_turn_part:
        raise UnsupportedError(
            f"`partial_rotary_factor` = {share!r} is not computed for a"
            f" `{config.fields['model_type']}`, whose class turns whole heads",
            where=config.where,
        )
    return int(size * share)


def _rope_rule(config: Config) -> Mapping[str, object]:
    """Return how heads are turned, as a configuration says it; the older name comes first."""
    given = config.fields.get("rope_scaling") or config.fields.get("rope_parameters") or {}
    if not isinstance(given, Mapping):
        raise ModelError(f"`rope_scaling` is {given!r}", where=config.where)
    return given


def _mixture(config: Config, family: Family) -> Mixture | None:
    row, fields = family.mixture, config.fields
    if row is None or not any(fields.get(name) for name in EXPERTS):
        return None
    check_groups(fields.get("n_group"), config.where)
    check_clamps(fields, config.where)
    normed = fields.get("norm_topk_prob")
    return mixture_of(
        row, _activation(config, family), config.whole(*EXPERTS), config.whole(*CHOSEN),
        config.where, is_normed=normed if isinstance(normed, bool) else None,
        scale=config.number("routed_scaling_factor", default=1.0),
    )  # fmt: skip


def _layers(
    config: Config, family: Family, turned: int, *, has_mixture: bool
) -> tuple[Layer, ...]:  # fmt: skip
    count = config.whole("num_hidden_layers")
    if count > 1024:
        raise ModelError(f"{count:,} layers are more than a model has", where=config.where)
    mixed = mixed_layers(config.fields, count) if has_mixture else [False] * count
    if family.has_convolutions:
        return _convolved_layers(config, family, turned, mixed)
    windows = _windows(config, family, count)
    plain = _plain_layers(config, family, count)
    whole, local = _turnings(config, family, turned)
    return tuple(
        Layer(window, None if is_plain else local if window else whole, is_mixture)
        for window, is_plain, is_mixture in zip(windows, plain, mixed, strict=True)
    )


def _convolved_layers(
    config: Config, family: Family, turned: int, mixed: Sequence[bool]
) -> tuple[Layer, ...]:  # fmt: skip
    """Return layers of which some have a short convolution in the place of attention."""
    turning, kinds = _turnings(config, family, turned)[0], config.fields.get("layer_types")
    count = len(mixed)
    if kinds is None:
        whole = config.fields.get("full_attn_idxs")
        listed = whole if isinstance(whole, list) else list(range(count))
        kinds = ["full_attention" if at in listed else "conv" for at in range(count)]
    if not isinstance(kinds, list) or len(kinds) != count:
        raise ModelError("`layer_types` is of other layers", where=config.where)
    if not set(kinds) <= {"full_attention", "conv"}:
        raise UnsupportedError(
            f"layers of the types {', '.join(sorted(set(map(str, kinds))))}", where=config.where
        )
    taps = config.whole("conv_L_cache", default=3)
    return tuple(
        Layer(0, turning, is_mixture, taps if kind == "conv" else 0)
        for kind, is_mixture in zip(kinds, mixed, strict=True)
    )


def _windows(config: Config, family: Family, count: int) -> list[int]:
    """Return the window of every layer, 0 for none."""
    if config.fields.get("use_sliding_window") is False:
        return [0] * count
    window = int(config.number("sliding_window"))
    if window < 0:
        raise ModelError(f"`sliding_window` is {window}", where=config.where)
    kinds = config.fields.get("layer_types")
    if isinstance(kinds, list):
        if len(kinds) != count or not set(kinds) <= {"full_attention", "sliding_attention"}:
            raise UnsupportedError(
                f"layers of the types {', '.join(sorted(map(str, set(kinds))))}",
                where=config.where,
            )
        return [window if kind == "sliding_attention" else 0 for kind in kinds]
    if not window:
        return [0] * count
    if family.gguf == "qwen2" or family.gguf == "qwen3":
        first = config.whole("max_window_layers", default=28)
        return [window if at >= first else 0 for at in range(count)]
    if family.gguf == "qwen2moe":
        raise UnsupportedError("windows of layers that are not listed", where=config.where)
    if family.gguf == "smollm3":
        return [window if is_plain else 0 for is_plain in _plain_layers(config, family, count)]
    every = family.every or count + 1
    if config.fields["model_type"] in _WITH_PATTERNS:
        every = config.whole("sliding_window_pattern", default=every)
    return [0 if (at + 1) % every == 0 else window for at in range(count)]


def _plain_layers(config: Config, family: Family, count: int) -> list[bool]:
    """Say which layers turn nothing."""
    given = config.fields.get("no_rope_layers")
    if isinstance(given, list) and family.plain_every:
        if len(given) != count:
            raise ModelError("`no_rope_layers` is of other layers", where=config.where)
        return [not one for one in given]  # 1 says that it turns
    if not family.plain_every:
        return [False] * count
    if family.gguf == "cohere2" or family.is_plain_beside_windows:
        has_some = bool(config.fields.get("sliding_window")) or not family.is_plain_beside_windows
        return [has_some and window == 0 for window in _windows(config, family, count)]
    every = config.whole("no_rope_layer_interval", default=family.plain_every)
    return [(at + 1) % every == 0 for at in range(count)]


def _turnings(config: Config, family: Family, turned: int) -> tuple[Turning, Turning]:
    """Return how heads are turned in layers that see all, and in those with a window."""
    context = config.whole("max_position_embeddings")
    base = config.number("rope_theta", default=10000.0)
    given = _rope_rule(config)

    def made(rule: Mapping[str, object], base: float) -> Turning:
        own = rule.get("rope_theta", base)
        theta = float(cast("float", own)) if isinstance(own, int | float) else base
        length = config.fields.get("original_max_position_embeddings")
        whole = dict(rule)
        if length is not None:
            whole["original_max_position_embeddings"] = length
        if not rule.get("alpha") and "dynamic" in (rule.get("rope_type"), rule.get("type")):
            whole["rope_type"] = "default"  # it changes what is beyond the context, which is cut
        return turning_of(RopeFacts(theta, turned, context, config.where), whole)

    nested = [given.get(name) for name in ("full_attention", "sliding_attention")]
    if all(isinstance(one, Mapping) for one in nested):
        first, second = (made(cast("Mapping[str, object]", one), base) for one in nested)
        return first, second
    whole = made(given, base)
    if family.has_plain_windows:
        return whole, made({"rope_theta": given.get("rope_theta", base)}, base)
    if not family.local_base:
        return whole, whole
    local = config.number("rope_local_base_freq", default=family.local_base)
    return whole, turning_of(RopeFacts(local, turned, context, config.where), {})
