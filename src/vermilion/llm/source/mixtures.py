"""How mixtures of experts choose: one row each, by the name of the architecture in GGUF.

Sources: the modelling files of huggingface/transformers 5.24; for GGUF, ggml-org/llama.cpp,
`src/llama-arch.cpp` (names of keys) and `src/llama-graph.cpp` (`build_moe_ffn`). A test holds the
logits of random weights of each against those of transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vermilion.codegen.emit.decoder.routes import Routing, Score
from vermilion.codegen.emit.decoder.row import CLAMPED_BOUND, CLAMPED_SLOPE, Source
from vermilion.errors import ModelError, UnsupportedError

_MOST_EXPERTS = 4096
_LEAST_SUM = 1e-6  # no sum of the weights of chosen experts is smaller


@dataclass(frozen=True)
class MixtureRow:
    """What the mixtures of an architecture have in common.

    `is_normed` is for files that do not say it. `kind` is what joins the products of an expert, ""
    the family's activation. `is_interleaved`: in a folder, what gates and what is gated are
    neighbouring columns of one matrix, whose rows are the depth.
    """

    score: Score = "softmax"
    is_normed: bool = True
    kind: Source | None = None
    is_interleaved: bool = False


MIXTURES: Mapping[str, MixtureRow] = {
    "llama": MixtureRow(),
    "qwen2moe": MixtureRow(is_normed=False),
    "qwen3moe": MixtureRow(),
    "olmoe": MixtureRow(is_normed=False),
    "granitemoe": MixtureRow(),
    "ernie4_5-moe": MixtureRow(),
    "glm4moe": MixtureRow(score="sigmoid"),
    "lfm2moe": MixtureRow(score="sigmoid"),
    "gpt-oss": MixtureRow(kind="clamped_silu", is_interleaved=True),
}


@dataclass(frozen=True)
class Mixture:
    """How the experts of a model are chosen, and what joins their products."""

    routing: Routing
    kind: Source
    is_interleaved: bool = False


def mixture_of(
    row: MixtureRow,
    activation: Source,
    experts: int,
    chosen: int,
    where: str,
    *,
    is_normed: bool | None = None,
    scale: float = 1.0,
    score: Score | None = None,
) -> Mixture:
    """Return the mixture of a model; None where a file does not say it.

    Raises: ModelError for numbers of experts that cannot be.
    """
    if not 0 < chosen <= experts <= _MOST_EXPERTS:
        raise ModelError(
            f"{chosen} of {experts} experts compute each row",
            where=where,
            hint="the file is damaged: download it again",
        )
    normed = row.is_normed if is_normed is None else is_normed
    routing = Routing(experts, chosen, score or row.score, normed, scale)
    return Mixture(routing, row.kind or activation, row.is_interleaved)


# In a configuration ------------------------------------------------------------------------------

EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
CHOSEN = ("num_experts_per_tok", "moe_k")


def check_groups(groups: object, where: str) -> None:
    """Raise UnsupportedError where experts are chosen among groups of them."""
    if isinstance(groups, int) and groups > 1:
        raise UnsupportedError(
            f"experts are chosen among {groups} groups, which is not computed", where=where
        )


def check_clamps(fields: Mapping[str, object], where: str) -> None:
    """Raise UnsupportedError for bounds of what joins products, or of what sums are divided by."""
    least = fields.get("moe_norm_min")
    if isinstance(least, int | float) and least > _LEAST_SUM:
        raise UnsupportedError(f"`moe_norm_min` = {least!r} is not computed", where=where)
    for name, known in (("swiglu_alpha", CLAMPED_SLOPE), ("swiglu_limit", CLAMPED_BOUND)):
        if fields.get(name, known) != known:
            raise UnsupportedError(
                f"`{name}` = {fields[name]!r} is not computed: {known} is", where=where
            )


def mixed_layers(fields: Mapping[str, object], count: int) -> list[bool]:
    """Say which layers are mixtures; the others have one matrix of each kind."""
    every = _whole(fields, "decoder_sparse_step", "moe_layer_interval", default=1)
    first = _whole(fields, "first_k_dense_replace", "moe_layer_start_index", "num_dense_layers")
    last = _whole(fields, "moe_layer_end_index", default=-1)
    last = count - 1 if last == -1 else last
    given = fields.get("mlp_only_layers")
    dense = given if isinstance(given, list) else []
    return [
        at not in dense and first <= at <= last and (at + 1) % every == 0 for at in range(count)
    ]


def _whole(fields: Mapping[str, object], *names: str, default: int = 0) -> int:
    for name in names:
        value = fields.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and (value or not default):
            return value
    return default
