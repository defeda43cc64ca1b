"""The measures of a decoder, from a Hugging Face `config.json` or a GGUF header.

With how the weights of its products are stored. Sources: the configuration classes of Hugging Face
transformers; the key names in llama.cpp's `gguf-py/gguf/constants.py`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from vermilion.errors import ModelError, OptionError, UnsupportedError
from vermilion.files import read_object
from vermilion.llm.gguf import GgufHeader

BLOCKS = (16, 32, 64, 128, 256)
"""What MatMulNBits takes. Source: onnxruntime, `docs/ContribOperators.md`."""


@dataclass(frozen=True)
class Quantization:
    """Weights of `bits` bits with one scale a block of `block` along K."""

    bits: int = 4
    block: int = 32
    is_symmetric: bool = True
    scale_bytes: int = 4

    def __post_init__(self) -> None:
        if self.bits not in (2, 4, 8) or self.block not in BLOCKS:
            blocks = ", ".join(map(str, BLOCKS))
            raise OptionError(
                f"{self.bits} bits in blocks of {self.block} are no weights of MatMulNBits",
                hint=f"4 or 8 bits, in blocks of {blocks}",
            )

    def stored_bytes(self, depth: int, width: int) -> int:
        """Return the bytes of a `depth` × `width` matrix with its scales and zero points."""
        blocks = -(-depth // self.block)
        zero_points = 0 if self.is_symmetric else width * -(-blocks * self.bits // 8)
        packed = width * blocks * self.block * self.bits // 8
        return packed + width * blocks * self.scale_bytes + zero_points


def stated_quantization(config: object) -> Quantization | None:
    """Return what a `quantization_config` of AWQ, GPTQ or Quark states, None for anything else."""
    if not isinstance(config, Mapping):
        return None
    weight = config
    if config.get("quant_method") == "quark":
        whole = config.get("global_quant_config")
        found = whole.get("weight") if isinstance(whole, Mapping) else None
        if not isinstance(found, Mapping):
            return None
        weight = found
    bits = {"uint4": 4, "int4": 4, "uint8": 8, "int8": 8}.get(
        str(weight.get("dtype", "")), weight.get("bits", weight.get("w_bit"))
    )
    block = weight.get("group_size", weight.get("q_group_size"))
    if bits not in (4, 8) or block not in BLOCKS:
        return None
    symmetric = weight.get("symmetric", weight.get("sym", not weight.get("zero_point", True)))
    return Quantization(int(bits), int(block), bool(symmetric))


# No published model comes near; more is a damaged or hostile file.
_MAX_MEASURE = 1 << 24


@dataclass(frozen=True)
class Family:
    """What the decoders of one `model_type` have in common.

    `norms` counts RMS norms in a layer. `has_qk_norm` is a norm over every head of Q and K.
    """

    activation: str = "SiLU"
    norms: int = 2
    has_qk_norm: bool = False


FAMILIES: Mapping[str, Family] = {
    "chatglm": Family(),
    "gemma": Family("GELU"),
    "gemma2": Family("GELU", norms=4),
    "gemma3": Family("GELU", norms=4, has_qk_norm=True),
    "gemma3_text": Family("GELU", norms=4, has_qk_norm=True),
    "llama": Family(),
    "mistral": Family(),
    "phi3": Family(),
    "qwen2": Family(),
    "qwen3": Family(has_qk_norm=True),
}
"""The families whose graphs are known here: RMS norms, rotary positions, a gated MLP."""


BUILT = frozenset(
    (
        *FAMILIES, "ernie4_5", "gpt_oss", "granite", "granitemoehybrid", "hunyuan_v1_dense",
        "internlm2", "lfm2", "lfm2_moe", "nemotron", "olmo", "phi", "phimoe", "qwen3_5",
        "qwen3_5_moe", "smollm3",
    )
)  # fmt: skip
"""What the builder 0.18 builds (`models/builder.py`): of those that are not in `FAMILIES`, what a
folder will need is estimated as if they were Llamas."""


@dataclass(frozen=True)
class Architecture:
    """The measures of one decoder."""

    family: str
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    has_tied_embeddings: bool

    @property
    def parameters(self) -> int:
        """How many weights it has, biases left out."""
        rows = self.heads + 2 * self.kv_heads + self.heads
        layer = self.hidden * self.head_size * rows + 3 * self.hidden * self.intermediate
        norms = FAMILIES[self.family].norms * self.hidden if self.family in FAMILIES else 0
        tables = 1 if self.has_tied_embeddings else 2
        return self.layers * (layer + norms) + self.hidden * (tables * self.vocabulary + 1)


def architecture_of_config(
    path: Path, *, is_for_building: bool = False
) -> tuple[Architecture, Quantization | None]:
    """Return the measures that a `config.json` states, and how its weights are quantized.

    For building, any family that the builder takes will do.

    Raises: OptionError, ModelError for a file that is not one; UnsupportedError for a family that
    is not known here.
    """
    data = read_object(path)
    where = str(path)
    text = data.get("text_config")
    fields = {**data, **text} if isinstance(text, dict) else data
    family = fields.get("model_type")
    if not isinstance(family, str):
        raise ModelError(
            "this is no model's configuration: it has no `model_type`",
            where=where,
            hint="name the `config.json` of a Hugging Face model, or its folder",
        )
    _check_family(family, where, BUILT if is_for_building else FAMILIES)
    for key in ("num_experts", "num_local_experts", "n_routed_experts"):
        if isinstance(fields.get(key), int) and fields[key] and not is_for_building:
            raise UnsupportedError(f"mixtures of experts are not known here: `{key}`", where=where)
    hidden = _measure(fields, where, "hidden_size")
    heads = _measure(fields, where, "num_attention_heads")
    architecture = Architecture(
        family=family,
        hidden=hidden,
        intermediate=_measure(fields, where, "intermediate_size", "ffn_hidden_size"),
        layers=_measure(fields, where, "num_hidden_layers", "num_layers"),
        heads=heads,
        kv_heads=_measure(
            fields, where, "num_key_value_heads", "multi_query_group_num", default=heads
        ),
        head_size=_measure(fields, where, "head_dim", "kv_channels", default=hidden // heads),
        vocabulary=_measure(fields, where, "vocab_size", "padded_vocab_size"),
        context=_measure(fields, where, "max_position_embeddings", "seq_length", default=2048),
        has_tied_embeddings=fields.get("tie_word_embeddings", family.startswith("gemma")) is True,
    )
    return _sound(architecture, where), stated_quantization(data.get("quantization_config"))


def architecture_of_gguf(header: GgufHeader) -> Architecture:
    """Return the measures that a GGUF header states.

    Raises: ModelError where one is missing; UnsupportedError for a family not known here.
    """
    where = str(header.path)
    family = header.metadata.get("general.architecture")
    if not isinstance(family, str):
        raise ModelError(
            "the header names no architecture", where=where, hint="this is no language model"
        )
    _check_family(family, where, FAMILIES)
    own = {
        key.removeprefix(f"{family}."): value
        for key, value in header.metadata.items()
        if key.startswith(f"{family}.")
    }
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    embedding = shapes.get("token_embd.weight", ())
    hidden = _measure(own, where, "embedding_length")
    heads = _measure(own, where, "attention.head_count")
    vocabulary = embedding[1] if len(embedding) == 2 else 0
    architecture = Architecture(
        family=family,
        hidden=hidden,
        intermediate=_measure(own, where, "feed_forward_length"),
        layers=_measure(own, where, "block_count"),
        heads=heads,
        kv_heads=_measure(own, where, "attention.head_count_kv", default=heads),
        head_size=_measure(own, where, "attention.key_length", default=hidden // heads),
        vocabulary=_measure(own, where, "vocab_size", default=vocabulary),
        context=_measure(own, where, "context_length"),
        has_tied_embeddings="output.weight" not in shapes,
    )
    return _sound(architecture, where)


def _check_family(family: str, where: str, known: Collection[str]) -> None:
    if family not in known:
        raise UnsupportedError(
            f"models of the type `{family}` are not known here",
            where=where,
            hint=f"known: {', '.join(known)}; or build it and list the folder's operators",
        )


def _measure(fields: Mapping[str, object], where: str, *names: str, default: int = 0) -> int:
    """Return the first of these keys that has a value; without one, the default if it is not 0."""
    for name in names:
        value = fields.get(name)
        if value is None:
            continue
        if isinstance(value, tuple | list) and value and len(set(map(str, value))) == 1:
            value = value[0]
        if isinstance(value, tuple | list):
            raise UnsupportedError(f"`{name}` differs from layer to layer", where=where)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= _MAX_MEASURE:
            raise ModelError(
                f"`{name}` is {value!r}, not a whole number above zero",
                where=where,
                hint="the file is damaged: download it again",
            )
        return value
    if default > 0:
        return default
    raise ModelError(
        f"`{names[0]}` is missing", where=where, hint="this is not the configuration of a decoder"
    )


def _sound(architecture: Architecture, where: str) -> Architecture:
    if architecture.heads % architecture.kv_heads:
        raise ModelError(
            f"{architecture.heads} attention heads cannot share {architecture.kv_heads} heads of"
            " keys and values",
            where=where,
            hint="the file is damaged: download it again",
        )
    if architecture.layers > 1024:
        raise ModelError(f"{architecture.layers:,} layers are more than a model has", where=where)
    return architecture
