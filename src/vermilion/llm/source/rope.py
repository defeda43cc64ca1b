"""How heads are turned: frequencies by the rule that a model names, and their tables.

Everything is computed in float32 as transformers does, whose names the rules and their parameters
have. Sources: huggingface/transformers 5.24, `modeling_rope_utils.py`; for GGUF's factors,
ggml-org/llama.cpp, `rope_freqs.weight`, which frequencies are divided by.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.engine.description import Rotation

Floats = NDArray[np.float32]
# Tables are for no more positions: of a longer context they would be larger than many a model.
MOST_POSITIONS = 131072


@dataclass(frozen=True, eq=False)
class Turning:
    """Frequencies of the pairs of a head, and what cosines and sines are multiplied with.

    Sequences longer than `short`, if it is not 0, have those of `longer`.
    """

    frequencies: Floats
    attention: float = 1.0
    longer: Floats | None = None
    short: int = 0

    def divided(self, factors: Floats) -> Turning:
        """Return frequencies that are divided by factors."""
        return replace(self, frequencies=self.frequencies / factors)

    def rotation(self, positions: int) -> Rotation:
        """Return cosines and sines of so many positions."""
        positions = min(positions, MOST_POSITIONS)
        if self.longer is None or positions <= self.short:
            return Rotation(*_tables(self.frequencies, positions, self.attention))
        short = _tables(self.frequencies, self.short, self.attention)
        long = _tables(self.longer, positions, self.attention)
        cosines, sines = (np.concatenate(pair) for pair in zip(short, long, strict=True))
        return Rotation(cosines, sines, self.short)


def _tables(frequencies: Floats, positions: int, attention: float) -> tuple[Floats, Floats]:
    angles = np.arange(positions, dtype=np.float32)[:, None] * frequencies
    factor = np.float32(attention)
    return np.cos(angles) * factor, np.sin(angles) * factor


@dataclass(frozen=True)
class RopeFacts:
    """What a rule needs: the base, how many numbers of a head are turned, the longest context."""

    base: float
    turned: int
    context: int
    where: str


def turning_of(facts: RopeFacts, rule: Mapping[str, object]) -> Turning:
    """Return the frequencies by a rule of a model's configuration.

    Raises: UnsupportedError for a rule that is not known; ModelError for parameters that are none.
    """
    if facts.turned < 2 or facts.turned % 2 or not 1 < facts.base < math.inf:
        raise ModelError(
            f"heads turn {facts.turned} numbers by powers of {facts.base}", where=facts.where
        )
    kind = str(rule.get("rope_type") or rule.get("type") or "default")
    unknown = [name for name, value in rule.items() if value and name not in _PARAMETERS]
    if unknown:
        raise UnsupportedError(
            f"heads are turned with `{unknown[0]}` = {rule[unknown[0]]!r}, which is not known here",
            where=facts.where,
            hint="what it does to the tokens is not known here",
        )
    if kind == "dynamic" and rule.get("alpha"):
        kind = "ntk_alpha"
    if kind == "yarn" and rule.get("long_factor"):
        kind = "longrope"  # as Phi's first configurations name it
    made = _RULES.get(kind)
    if made is None:
        raise UnsupportedError(
            f"heads are turned by the rule `{kind}`, which is not known here",
            where=facts.where,
            hint=f"known: {', '.join(_RULES)}",
        )
    return made(facts, rule)


def _powers(facts: RopeFacts) -> Floats:
    exponents = np.arange(0, facts.turned, 2, dtype=np.float32) / np.float32(facts.turned)
    return cast("Floats", np.power(np.float32(facts.base), exponents))


def _number(facts: RopeFacts, rule: Mapping[str, object], name: str, default: float = 0.0) -> float:
    """Return a parameter over 0; without one the default, if that is not 0."""
    value = rule.get(name)
    if value is None and default:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
        raise ModelError(f"`{name}` is {value!r}, not a number over 0", where=facts.where)
    return float(value)


def _default(facts: RopeFacts, rule: Mapping[str, object]) -> Turning:
    return Turning(np.float32(1) / _powers(facts))


def _linear(facts: RopeFacts, rule: Mapping[str, object]) -> Turning:
    plain = _default(facts, rule)
    return replace(
        plain, frequencies=plain.frequencies / np.float32(_number(facts, rule, "factor"))
    )


def _ntk_alpha(facts: RopeFacts, rule: Mapping[str, object]) -> Turning:
    """The base is stretched by a fixed factor, by which configurations say `dynamic` as well."""
    if facts.turned < 4:
        raise ModelError(f"heads turn {facts.turned} numbers", where=facts.where)
    grown = _number(facts, rule, "alpha") ** (facts.turned / (facts.turned - 2))
    return _default(replace(facts, base=facts.base * grown), rule)


def _llama3(facts: RopeFacts, rule: Mapping[str, object]) -> Turning:
    """Long waves are stretched, short ones left, those between them in part."""
    plain = _default(facts, rule).frequencies
    factor = _number(facts, rule, "factor")
    low, high = (_number(facts, rule, f"{name}_freq_factor") for name in ("low", "high"))
    if low == high:
        raise ModelError(f"`low_freq_factor` and `high_freq_factor` are {low}", where=facts.where)
    length = _number(facts, rule, "original_max_position_embeddings", float(facts.context))
    waves = np.float32(2 * math.pi) / plain
    stretched = np.where(waves > length / low, plain / np.float32(factor), plain)
    share = (np.float32(length) / waves - np.float32(low)) / np.float32(high - low)
    mixed = (1 - share) * stretched / np.float32(factor) + share * stretched
    is_between = ~(waves < length / high) & ~(waves > length / low)
    return Turning(np.where(is_between, mixed, stretched).astype(np.float32))


def _yarn(facts: RopeFacts, rule: Mapping[str, object]) -> Turning:
    length = _number(facts, rule, "original_max_position_embeddings", float(facts.context))
    factor = _number(facts, rule, "factor", facts.context / length)
    attention = rule.get("attention_factor")
    if attention is None:
        whole, part = rule.get("mscale"), rule.get("mscale_all_dim")
        if whole and part:
            attention = _grown(factor, _number(facts, rule, "mscale")) / _grown(
                factor, _number(facts, rule, "mscale_all_dim")
            )
        else:
            attention = _grown(factor, 1.0)
    fast, slow = _number(facts, rule, "beta_fast", 32.0), _number(facts, rule, "beta_slow", 1.0)

    def place(turns: float) -> float:
        """Return which pair turns so often in the original context."""
        return facts.turned * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(facts.base))

    low, high = place(fast), place(slow)
    if rule.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, facts.turned - 1)
    high += 0.001 if low == high else 0
    ramp = (np.arange(facts.turned // 2, dtype=np.float32) - low) / (high - low)
    own = (1 - np.clip(ramp, 0, 1)).astype(np.float32)
    powers = _powers(facts)
    stretched = np.float32(1) / (np.float32(factor) * powers)
    mixed = stretched * (1 - own) + np.float32(1) / powers * own
    return Turning(mixed.astype(np.float32), float(cast("float", attention)))


def _grown(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(facts: RopeFacts, rule: Mapping[str, object]) -> Turning:
    length = int(_number(facts, rule, "original_max_position_embeddings", float(facts.context)))
    factor = _number(facts, rule, "factor", facts.context / length)
    attention = _number(
        facts,
        rule,
        "attention_factor",
        1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(length)),
    )
    for name in ("short_mscale", "long_mscale"):
        if rule.get(name) is not None:
            raise UnsupportedError(f"`{name}` is not known here", where=facts.where)
    short, long = (
        np.float32(1) / (_factors(facts, rule.get(f"{name}_factor")) * _powers(facts))
        for name in ("short", "long")
    )
    return Turning(short, attention, long, length)


def _factors(facts: RopeFacts, given: object) -> Floats:
    numbers = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else []
    is_sound = all(
        isinstance(one, int | float) and not isinstance(one, bool) and 0 < one < math.inf
        for one in numbers
    )
    if len(numbers) != facts.turned // 2 or not is_sound:
        raise ModelError(
            f"{len(numbers)} factors over 0 for {facts.turned // 2} pairs of a head",
            where=facts.where,
            hint="the file is damaged: download it again",
        )
    return np.array(numbers, np.float32)


# What a rule may have. The share of a head that is turned is among the facts.
_PARAMETERS = frozenset(
    (
        "rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings",
        "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
        "low_freq_factor", "high_freq_factor", "short_factor", "long_factor", "short_mscale",
        "long_mscale", "alpha", "partial_rotary_factor", "finetuned", "max_position_embeddings",
    )
)  # fmt: skip
_RULES = {
    "default": _default,
    "none": _default,
    "linear": _linear,
    "ntk_alpha": _ntk_alpha,
    "llama3": _llama3,
    "yarn": _yarn,
    "longrope": _longrope,
    "su": _longrope,
}
