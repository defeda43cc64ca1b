"""Which products of many rows are computed with seven multiplications of quarters, not eight."""

from __future__ import annotations

from vermilion.codegen.emit.decoder.panel_product import PanelProductSpec
from vermilion.codegen.emit.decoder.strassen import SevenProductsSpec
from vermilion.codegen.emit.decoder.strassen_rows import HalvedRows
from vermilion.codegen.emit.decoder.weights import BlockWeights

# From which on it is faster: what it saves pays for the sums, and workers share whole pairs of
# panels. On one Zen 5 core, a product of 2048 × 4096 took 0.956 of its time with 256 rows, 0.947
# with 384, 0.930 with 512; 0.999 with 192, and of 576 × 3072 0.96 with 512. With the 1536 × 576
# of SmolLM2 done so, its prompt of 512 took 1.02 of its time on one core, and 1.08 on two.
LEAST_ROWS, LEAST_DEPTH, LEAST_COLUMNS = 384, 1024, 2048
# Values of a half of the depth that are unpacked at a time, about.
_RUN = 256


def seven_of(spec: PanelProductSpec) -> SevenProductsSpec | None:
    """Return the product with seven multiplications for the rows of which it is faster, if any.

    Only for numbers in bfloat16 as they are: it rounds sums of them, which those that share an
    exponent do not survive.
    """
    w = spec.weights
    if not isinstance(w, BlockWeights) or spec.rows.kind != "bf16" or w.bits != 4:
        return None
    if spec.max_rows < LEAST_ROWS or w.depth < LEAST_DEPTH or w.columns < LEAST_COLUMNS:
        return None
    half = w.depth // 2
    if spec.max_rows % 8 or w.block > _RUN:
        return None
    if w.panels % 2 or w.depth % 2 or half % 32 or half % w.block:
        return None
    runs = max(1, round(half / _RUN))
    step = max(32, w.block)
    rows = HalvedRows(w.depth, -(-half // (runs * step)) * step, spec.max_rows)
    return SevenProductsSpec(w, rows, spec.out_row, spec.has_bias, LEAST_ROWS, spec.gate)
