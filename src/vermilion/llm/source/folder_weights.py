"""The weights of a Hugging Face folder, by the names that they have in GGUF."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from vermilion.errors import ModelError, UnsupportedError
from vermilion.llm.engine.description import Floats
from vermilion.llm.engine.embedding import Embedding
from vermilion.llm.engine.matrices import Part
from vermilion.llm.source.folder_experts import FolderExperts
from vermilion.llm.source.mixtures import Mixture
from vermilion.llm.source.packed_weights import Packing, packed_part
from vermilion.llm.source.safetensors import SafeTensor
from vermilion.llm.source.stored import embedding_of, floats_of, part_of

_NAMES: Mapping[str, str] = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_sinks": "self_attn.sinks",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_gate_inp": "mlp.gate",
}
# Where both halves of what is gated are one matrix, it has this name.
_BOTH = "mlp.gate_up_proj"
# Tensors whose names in a folder do not say whether they are weights or biases.
_BARE = ("attn_sinks", "exp_probs_b")
# Tables that older versions of transformers saved, which follow from the configuration.
_COMPUTED = ("rotary_emb.inv_freq",)


@dataclass
class FolderTensors:
    """Weights of a folder, and which of them were asked for."""

    folder: Path
    tensors: Mapping[str, SafeTensor]
    names: Mapping[str, str]  # those of the family that are not the usual ones
    is_tied: bool
    packing: Packing | None
    asked: set[str] = field(default_factory=set)
    layers: int | None = None  # what is behind these is left alone

    @property
    def where(self) -> str:
        """The folder."""
        return str(self.folder)

    def has(self, name: str) -> bool:
        """Say whether there is one of this name."""
        base, kind = self._base(name)
        if name == "output" and self.is_tied:
            self.asked.add("lm_head.weight")
            return False
        if self._stored(name) in self.tensors:
            return True
        return kind == "weight" and self._is_packed(base)

    def part(self, name: str) -> Part:
        """Return a matrix."""
        return self._part(self._base(name)[0]) or part_of(*self._found(name))

    def experts(self, name: str, mixture: Mixture) -> tuple[Part, ...]:
        """Return the matrices of all experts."""
        return self._experts(name).parts(_own(name), mixture)

    def expert_biases(self, name: str, mixture: Mixture) -> Floats | None:
        """Return what is added to the products of all experts, if anything."""
        return self._experts(name).biases(_own(name), mixture)

    def _experts(self, name: str) -> FolderExperts:
        layer = f"model.layers.{name.partition('.')[0]}"
        return FolderExperts(layer, self.tensors, self.where, self._part, self.asked)

    def _part(self, base: str) -> Part | None:
        """Return a matrix by its name in the folder, None where there is none."""
        if self.packing is not None and self._is_packed(base):
            prefix = f"{base}."
            own = {
                key.removeprefix(prefix): tensor
                for key, tensor in self.tensors.items()
                if key.startswith(prefix)
            }
            # A bias is asked for by its own name.
            self.asked |= {f"{prefix}{key}" for key in own if key != "bias"}
            return packed_part(self.packing, own, f"{self.where}, tensor `{base}`")
        stored = f"{base}.weight"
        return part_of(*self._read(stored)) if stored in self.tensors else None

    def floats(self, name: str, rank: int = 1) -> Floats:
        """Return the numbers of a vector, or of as many dimensions."""
        type_, rows, where = self._found(name)
        is_row = rank == 1 and rows.ndim == 2 and len(rows) == 1
        if rows.ndim == rank + 1 and rows.shape[-2] == 1 and not is_row:
            rows = rows[..., 0, :]  # taps of a convolution whose groups are single numbers
        return floats_of(type_, rows[0] if is_row else rows, where, rank)

    def embedding(self, name: str) -> Embedding:
        """Return a matrix whose rows tokens begin with."""
        return embedding_of(*self._found(name))

    def unread(self) -> tuple[str, ...]:
        """Return the names of those that nobody asked for."""
        left = (name for name in self.tensors if name not in self.asked)
        return tuple(one for one in left if not one.endswith(_COMPUTED) and self._is_read(one))

    def _is_read(self, stored: str) -> bool:
        """Say whether a tensor is none of layers that are left alone."""
        before, _, rest = stored.partition("model.layers.")
        number = rest.partition(".")[0]
        if before or self.layers is None or not number.isdecimal():
            return True
        return len(number) < 10 and int(number) < self.layers  # no model has as many layers

    def _base(self, name: str) -> tuple[str, str]:
        """Return a tensor's name in the folder, and whether it is a weight or a bias."""
        name, kind = (name[:-5], "bias") if name.endswith(".bias") else (name, "weight")
        layer, dot, rest = name.partition(".")
        own = rest if dot else layer
        stored = self.names.get(own) or _NAMES.get(own, own)
        if not dot:
            return stored, kind
        base = f"model.layers.{layer}.{stored}"
        if own == "ffn_up" and f"{base}.weight" not in self.tensors and not self._is_packed(base):
            both = f"model.layers.{layer}.{_BOTH}"
            if f"{both}.weight" in self.tensors or self._is_packed(both):
                return both, kind
        return base, kind

    def _is_packed(self, base: str) -> bool:
        return any(f"{base}.{name}" in self.tensors for name in ("qweight", "weight_packed"))

    def _stored(self, name: str) -> str:
        """Return a tensor's whole name in the folder."""
        base, kind = self._base(name)
        is_bare = any(f".{one}" in f".{name}" for one in _BARE)
        return base if is_bare else f"{base}.{kind}"

    def _found(self, name: str) -> tuple[str, NDArray[np.uint8], str]:
        return self._read(self._stored(name))

    def _read(self, stored: str) -> tuple[str, NDArray[np.uint8], str]:
        tensor = self.tensors.get(stored)
        where = f"{self.where}, tensor `{stored}`"
        if tensor is None:
            raise ModelError(
                f"there is no tensor `{stored}`",
                where=self.where,
                hint="download the folder's files again",
            )
        if tensor.type not in ("F32", "F16", "BF16"):
            raise UnsupportedError(
                f"weights of the type {tensor.type} are not known here", where=where
            )
        self.asked.add(stored)
        return tensor.type, tensor.rows, where


def _own(name: str) -> str:
    """Return a tensor's name in its layer."""
    return name.partition(".")[2]
