"""How the weights of a model's products are stored."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from vermilion.errors import OptionError

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
