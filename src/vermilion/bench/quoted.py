"""Figures that others published for the sizes of the suite. Quoted, never measured here."""

from __future__ import annotations

from dataclasses import dataclass

SOURCE = "ONNX Runtime Guide for AMD GPUs, section `Performance Benchmarks`"
HARDWARE = "Radeon RX 7900 XTX; the CPU is not named"
SOFTWARE = "ROCm 6.4.43482, ONNX Runtime 1.16.0"
DATE = "2025-05-15"
PROVIDERS = ("CPU", "ROCm", "MIGraphX")

NOTE = f"quoted: {SOURCE}; {HARDWARE}; {SOFTWARE}; {DATE}. Nobody here has checked these figures."


@dataclass(frozen=True)
class Quoted:
    """One row of the guide, in the order of `PROVIDERS`."""

    network: str
    batch: int
    sequence: int | None
    latency_ms: tuple[float, float, float]
    memory_mb: tuple[float, float, float] | None = None  # the guide has it for ResNet-50 only


FIGURES: tuple[Quoted, ...] = (
    Quoted("resnet50", 1, None, (42.3, 3.8, 3.2), (124, 876, 742)),
    Quoted("resnet50", 8, None, (336.5, 12.4, 10.8), (356, 1248, 1054)),
    Quoted("resnet50", 16, None, (673.2, 23.7, 20.5), (612, 1624, 1368)),
    Quoted("resnet50", 32, None, (1346.8, 46.2, 39.7), (1124, 2376, 1996)),
    Quoted("resnet50", 64, None, (2693.5, 91.8, 78.4), (2148, 3880, 3252)),
    Quoted("bert_base", 1, 128, (98.7, 12.4, 11.8)),
    Quoted("bert_base", 8, 128, (789.6, 42.3, 38.7)),
    Quoted("bert_base", 1, 384, (294.5, 28.7, 26.2)),
    Quoted("bert_base", 8, 384, (2356.0, 124.6, 112.8)),
    Quoted("bert_base", 1, 512, (392.8, 36.5, 33.1)),
    Quoted("bert_base", 8, 512, (3142.4, 168.2, 151.7)),
)


def quoted_for(network: object, batch: object, sequence: object) -> Quoted | None:
    """Return the guide's row of a size, None where it has none."""
    wanted = (network, batch, sequence)
    return next((q for q in FIGURES if (q.network, q.batch, q.sequence) == wanted), None)
