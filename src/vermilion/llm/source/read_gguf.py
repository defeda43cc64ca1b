"""A GGUF file → its blueprint and its weights.

Sources: ggml-org/ggml, `docs/gguf.md`; ggml-org/llama.cpp, `gguf-py/gguf/constants.py` for the
names of keys and tensors, and `src/models` for what they do.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from vermilion.codegen.emit.decoder.routes import Score
from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.engine.description import Floats
from vermilion.llm.engine.embedding import Embedding
from vermilion.llm.engine.matrices import Part
from vermilion.llm.gguf import GgufFile, GgufTensor
from vermilion.llm.source.blueprint import MOST_MEASURE, Blueprint, Layer
from vermilion.llm.source.families import FAMILIES, REFUSED, Family
from vermilion.llm.source.mixtures import Mixture, check_groups, mixture_of
from vermilion.llm.source.rope import RopeFacts, Turning, turning_of
from vermilion.llm.source.stored import embedding_of, floats_of, halves_of, part_of

_NAMES = {"attn_post_norm": "post_attention_norm", "ffn_post_norm": "post_ffw_norm"}
# What gates and what is gated of all experts, where both are one tensor.
_BOTH = "ffn_gate_up_exps"
# Matrices of one column, which are stored as vectors.
_OF_ONE_COLUMN = "ffn_gate_inp_shexp"
# Keys that change nothing about the tokens.
_HARMLESS = frozenset(
    (
        "vocab_size", "tensor_data_layout", "rope.scaling.finetuned", "block_count", "name",
        # Sizes of experts follow from their tensors.
        "expert_feed_forward_length", "expert_shared_feed_forward_length", "expert_shared_count",
        # Which layers are mixtures, likewise.
        "leading_dense_block_count", "interleave_moe_layer_step",
    )
)  # fmt: skip
# What `expert_gating_func` says; 3 is the softmax of the chosen ones, which is that of all, normed.
_GATINGS: Mapping[int, Score] = {1: "softmax", 2: "sigmoid", 3: "softmax"}
# Models whose scores are divided by the root of hidden size ÷ heads, by family and layers: Gemma 2
# and 3 of 27 billion weights.
_BY_HIDDEN = {("gemma2", 46), ("gemma3", 62)}
# What the first files of Gemma 2 leave out, as llama.cpp has it.
_GEMMA2 = {
    "attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0,
    "attention.sliding_window": 4096.0,
}  # fmt: skip


@dataclass
class GgufTensors:
    """Weights of a file, and which of them were asked for."""

    file: GgufFile
    asked: set[str] = field(default_factory=set)
    names: Mapping[str, str] = field(default_factory=dict)  # those of the family
    layers: int = 1 << 16  # what is behind these is left alone

    @property
    def where(self) -> str:
        """The file."""
        return str(self.file.header.path)

    def has(self, name: str) -> bool:
        """Say whether there is one of this name."""
        return self.file.tensor(self._stored(name)) is not None

    def part(self, name: str) -> Part:
        """Return a matrix."""
        type_, rows, where = self._found(name)
        is_row = rows.ndim == 1 and name.endswith(_OF_ONE_COLUMN)
        return part_of(type_, rows[None] if is_row else rows, where)

    def experts(self, name: str, mixture: Mixture) -> tuple[Part, ...]:
        """Return the matrices of all experts."""
        layer, _, own = name.partition(".")
        both = f"{layer}.{_BOTH}"
        if own != "ffn_down_exps" and self.has(both):
            side = int(own == "ffn_up_exps")
            return tuple(halves_of(one)[side] for one in self._stacked(both, mixture))
        return tuple(self._stacked(name, mixture))

    def _stacked(self, name: str, mixture: Mixture) -> Iterator[Part]:
        type_, rows, where = self._found(name)
        count = mixture.routing.experts
        if rows.ndim != 3 or len(rows) != count:
            raise ModelError(
                f"a tensor of {rows.ndim} dimensions, {len(rows)} the first, for {count} experts",
                where=where,
                hint="the file is damaged: download it again",
            )
        for own in rows:
            yield part_of(type_, own, where)

    def expert_biases(self, name: str, mixture: Mixture) -> Floats | None:
        """Return what is added to the products of all experts, if anything."""
        return self.floats(f"{name}.bias", 2) if self.has(f"{name}.bias") else None

    def floats(self, name: str, rank: int = 1) -> Floats:
        """Return the numbers of a vector, or of as many dimensions."""
        return floats_of(*self._found(name), rank)

    def embedding(self, name: str) -> Embedding:
        """Return a matrix whose rows tokens begin with."""
        return embedding_of(*self._found(name))

    def unread(self) -> tuple[str, ...]:
        """Return the names of those that nobody asked for."""
        names = (tensor.name for tensor in self.file.header.tensors)
        return tuple(
            name for name in names if name not in self.asked and _layer_of(name) < self.layers
        )

    def _found(self, name: str) -> tuple[str, NDArray[np.uint8], str]:
        stored = self._stored(name)
        tensor = self.file.tensor(stored)
        if tensor is None:
            raise ModelError(
                f"there is no tensor `{stored}`",
                where=self.where,
                hint="the file is damaged: download it again",
            )
        self.asked.add(stored)
        return tensor.type, self._rows(tensor), f"{self.where}, tensor `{stored}`"

    def _stored(self, name: str) -> str:
        layer, dot, rest = name.partition(".")
        if not dot or not layer.isdecimal():
            return name if dot else f"{self.names.get(name, name)}.weight"
        own, dot, last = rest.partition(".")
        stored = self.names.get(own) or _NAMES.get(own, own)
        return f"blk.{layer}.{stored}.{last or 'weight'}"

    def _rows(self, tensor: GgufTensor) -> NDArray[np.uint8]:
        return self.file.rows(tensor)


def _layer_of(stored: str) -> int:
    """Return the layer of a tensor, -1 for one of none."""
    kind, number = [*stored.split(".", 2), "", ""][:2]
    return int(number) if kind == "blk" and number.isdecimal() and len(number) < 10 else -1


def family_of(architecture: str, where: str | Path) -> Family:
    """Return the family of a GGUF file's architecture.

    Raises: UnsupportedError for one that cannot be computed, with the reason where it is known.
    """
    found = next((one for one in FAMILIES if one.gguf == architecture), None)
    if found is not None:
        return found
    raise refused(architecture, str(where), list(dict.fromkeys(one.gguf for one in FAMILIES)))


def refused(name: str, where: str, known: list[str]) -> UnsupportedError:
    """Return the error for an architecture that is not computed."""
    reason = REFUSED.get(name)
    return UnsupportedError(
        f"models of the architecture `{name}` are not read"
        + (f": {reason}" if reason else ", which is not known here"),
        where=where,
        hint=f"there are {', '.join(known)}",
    )


def read_blueprint(file: GgufFile, tensors: GgufTensors) -> Blueprint:
    """Return what the decoder of a file is like.

    Raises: ModelError for measures that are missing or cannot be; UnsupportedError for an
    architecture, or a key of one, that is not known here.
    """
    metadata, where = file.header.metadata, str(file.header.path)
    parts = metadata.get("split.count")
    if isinstance(parts, int) and parts > 1:
        raise UnsupportedError(
            "the model is split into several files",
            where=where,
            hint="`llama-gguf-split --merge` of llama.cpp makes one of them",
        )
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(
            "the header names no architecture", where=where, hint="this is no language model"
        )
    family = family_of(architecture, where)
    keys = _Keys(architecture, metadata, where)
    tensors.names = family.gguf_names or {}
    made = _blueprint(keys, family, tensors)
    keys.check_all_read()
    return made


@dataclass
class _Keys:
    """The keys of an architecture, and which of them were asked for."""

    architecture: str
    metadata: Mapping[str, object]
    where: str
    asked: set[str] = field(default_factory=set)

    def get(self, name: str) -> object:
        """Return a value, None where there is none."""
        self.asked.add(name)
        return self.metadata.get(f"{self.architecture}.{name}")

    def whole(self, name: str, default: int = 0, *, has_zeros: bool = False) -> int:
        """Return a measure; of a list, what all of it is, or all that are not 0."""
        value = self.get(name)
        if has_zeros and isinstance(value, tuple | list):
            value = [one for one in value if one]
        if value is None and default > 0:
            return default
        if isinstance(value, tuple | list) and value and len(set(map(str, value))) == 1:
            value = value[0]
        if isinstance(value, tuple | list):
            raise UnsupportedError(f"`{name}` differs from layer to layer", where=self.where)
        if value is None:
            raise ModelError(
                f"`{self.architecture}.{name}` is missing",
                where=self.where,
                hint="the file is damaged: download it again",
            )
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= MOST_MEASURE:
            raise self._wrong(name, value, "a whole number above zero")
        return value

    def number(self, name: str, default: float) -> float:
        """Return a number that is finite."""
        value = self.get(name)
        if value is None:
            return _GEMMA2.get(name, default) if self.architecture == "gemma2" else default
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            raise self._wrong(name, value, "a number")
        return float(value)

    def _wrong(self, name: str, value: object, what: str) -> ModelError:
        return ModelError(
            f"`{self.architecture}.{name}` is {value!r}, not {what}",
            where=self.where,
            hint="the file is damaged: download it again",
        )

    def check_all_read(self) -> None:
        """Raise UnsupportedError for a key that nothing here reads: it may change the tokens."""
        prefix = f"{self.architecture}."
        for key, value in self.metadata.items():
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and name not in self.asked | _HARMLESS and value:
                raise UnsupportedError(
                    f"the key `{key}` = {value!r} is not known here",
                    where=self.where,
                    hint="what it does to the tokens is not known here",
                )


def _blueprint(keys: _Keys, family: Family, tensors: GgufTensors) -> Blueprint:
    hidden, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    size = keys.whole("attention.key_length", max(1, hidden // heads))
    if keys.whole("attention.value_length", size) != size:
        raise UnsupportedError("heads of values have another size than keys'", where=keys.where)
    if keys.get("attention.causal") is False:
        raise UnsupportedError("it reads text in both directions", where=keys.where)
    blocks = keys.whole("block_count")
    if blocks > 1024:
        raise ModelError(f"{blocks:,} layers are more than a model has", where=keys.where)
    # The last ones guess the tokens after the next, and are not needed for that one.
    layers = tensors.layers = blocks - int(keys.number("nextn_predict_layers", 0))
    epsilon = "layer_norm_epsilon" if family.norm == "layer" else "layer_norm_rms_epsilon"
    turned = keys.whole("rope.dimension_count", size)
    context = keys.whole("context_length")
    by_hidden = (family.gguf, layers) in _BY_HIDDEN
    scale = keys.number("attention.scale", 0.0)
    logit_scale = keys.number("logit_scale", 0.0) or 1.0
    mixture = _mixture(keys, family)
    return Blueprint(
        family=family, where=keys.where, hidden=hidden, heads=heads,
        key_heads=keys.whole("attention.head_count_kv", heads, has_zeros=family.has_convolutions),
        head_size=size,
        inner=keys.whole("feed_forward_length", 0 if mixture is None else 1), context=context,
        layers=_layers(keys, family, tensors, layers, RopeFacts(0.0, turned, context, keys.where)),
        mixture=mixture,
        turned=turned, epsilon=keys.number(f"attention.{epsilon}", 0.0),
        scale=scale or 1 / math.sqrt(hidden / heads if by_hidden else size),
        has_pairs=family.gguf_pairs, norm_offset=0.0,
        score_bound=keys.number("attn_logit_softcapping", 0.0),
        logits_bound=keys.number("final_logit_softcapping", 0.0),
        logits_factor=1 / logit_scale if family.gguf.startswith("granite") else logit_scale,
        embedding_factor=keys.number("embedding_scale", 0.0)
        or (math.sqrt(hidden) if family.has_scaled_embedding else 1.0),
        residual_factor=keys.number("residual_scale", 0.0) or 1.0,
        activation=family.activation,
    )  # fmt: skip


def _mixture(keys: _Keys, family: Family) -> Mixture | None:
    if not keys.get("expert_count"):
        return None
    if family.mixture is None:
        raise UnsupportedError(
            f"a mixture of experts as a `{family.gguf}` is not known here", where=keys.where
        )
    for name in ("expert_group_count", "expert_group_used_count"):
        check_groups(keys.get(name), keys.where)
    normed, gating = keys.get("expert_weights_norm"), keys.get("expert_gating_func")
    if gating not in (None, 0, *_GATINGS):
        raise UnsupportedError(f"experts are chosen by the rule {gating!r}", where=keys.where)
    return mixture_of(
        family.mixture, family.activation, keys.whole("expert_count"),
        keys.whole("expert_used_count"), keys.where,
        is_normed=True if gating == 3 else normed if isinstance(normed, bool) else None,
        scale=keys.number("expert_weights_scale", 0.0) or 1.0,
        score=_GATINGS.get(cast("int", gating)),
    )  # fmt: skip


def _layers(
    keys: _Keys, family: Family, tensors: GgufTensors, count: int, facts: RopeFacts
) -> tuple[Layer, ...]:
    window = int(keys.number("attention.sliding_window", 0))
    if window < 0:
        raise ModelError(f"a window of {window} tokens", where=keys.where)
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, tuple | list):
        if len(pattern) != count:
            raise ModelError("the pattern of windows is of other layers", where=keys.where)
        sees_all = [not one for one in pattern]
    else:
        every = pattern if isinstance(pattern, int) and pattern > 0 else family.every
        sees_all = [bool(every) and (at + 1) % every == 0 for at in range(count)]
    base = keys.number("rope.freq_base", 10000.0)
    turning = _turning(
        keys, family, tensors, RopeFacts(base, facts.turned, facts.context, facts.where)
    )
    plain_base = base if family.has_plain_windows else family.local_base
    local_base = keys.number("rope.freq_base_swa", plain_base)
    local = turning
    if local_base and window:
        local = turning_of(replace(facts, base=local_base), {})
    layers = []
    for at, is_whole in enumerate(sees_all):
        is_plain = family.plain_every and (at + 1) % family.plain_every == 0
        is_plain = is_plain and (window > 0 or not family.is_plain_beside_windows)
        own_turning = turning if is_whole or not window else local
        is_mixture = tensors.has(f"{at}.ffn_gate_inp")
        taps = tensors.has(f"{at}.shortconv_conv") and keys.whole("shortconv.l_cache")
        window_here = 0 if is_whole else window
        layers.append(Layer(window_here, None if is_plain else own_turning, is_mixture, int(taps)))
    return tuple(layers)


def _turning(
    keys: _Keys, family: Family, tensors: GgufTensors, facts: RopeFacts
) -> Turning:  # fmt: skip
    # A factor without a rule stretches linearly, as in llama.cpp.
    plain = "linear" if keys.get("rope.scaling.factor") else "default"
    rule: dict[str, object] = {"rope_type": keys.get("rope.scaling.type") or plain}
    for name, key in (
        ("factor", "rope.scaling.factor"),
        ("original_max_position_embeddings", "rope.scaling.original_context_length"),
        ("attention_factor", "rope.scaling.attn_factor"),
        ("beta_fast", "rope.scaling.yarn_beta_fast"),
        ("beta_slow", "rope.scaling.yarn_beta_slow"),
    ):
        if keys.get(key) is not None:
            rule[name] = keys.number(key, 0.0)
    if rule["rope_type"] == "yarn":
        rule["truncate"] = family.is_truncated
        # llama.cpp multiplies its own growth with this factor, which is 1 where nothing says it.
        own = cast("float", rule.pop("attention_factor", 1.0))
        factor = float(cast("float", rule.get("factor", 1.0)))
        rule["attention_factor"] = own * (1 + 0.1 * math.log(factor)) if factor > 1 else own
    for part in ("long", "short"):
        if tensors.has(f"rope_factors_{part}"):
            rule["rope_type"] = "longrope"
            rule[f"{part}_factor"] = tensors.floats(f"rope_factors_{part}").tolist()
    turning = turning_of(facts, rule)
    if tensors.has("rope_freqs"):
        factors = tensors.floats("rope_freqs")
        if factors.size != facts.turned // 2 or not (factors > 0).all():
            raise ModelError(
                f"`rope_freqs.weight` has {factors.size} factors for {facts.turned // 2} pairs",
                where=keys.where,
                hint="the file is damaged: download it again",
            )
        turning = turning.divided(factors)
    return turning
