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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Where both halves of what is gated are one matrix, it has this name.
_BOTH = "mlp.gate_up_proj"
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
        return f"{base}.{kind}" in self.tensors or (kind == "weight" and self._is_packed(base))

    def part(self, name: str) -> Part:
        """Return a matrix."""
        base, _ = self._base(name)
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
        return part_of(*self._found(name))

    def floats(self, name: str) -> Floats:
        """Return the numbers of a vector."""
        return floats_of(*self._found(name))

    def embedding(self, name: str) -> Embedding:
        """Return a matrix whose rows tokens begin with."""
        return embedding_of(*self._found(name))

    def unread(self) -> tuple[str, ...]:
        """Return the names of those that nobody asked for."""
        return tuple(
            name for name in self.tensors if name not in self.asked and not name.endswith(_COMPUTED)
        )

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

    def _found(self, name: str) -> tuple[str, NDArray[np.uint8], str]:
        stored = ".".join(self._base(name))
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
