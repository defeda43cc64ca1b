"""Mean average precision of a detector's boxes, over overlaps from 0.5 to 0.95.

Outputs: one of rows (x1, y1, x2, y2, score, class), or three that hold boxes, scores and classes.
Labels: rows (class, x1, y1, x2, y2). Source: COCO's evaluation: precision at 101 recalls, boxes
matched from the best score down, each label once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vermilion.errors import OptionError
from vermilion.ir.execute import Array
from vermilion.quantize.metrics import Metric, Outputs, Sample

_OVERLAPS = np.arange(0.5, 1.0, 0.05)
_RECALLS = np.linspace(0.0, 1.0, 101)
_LEAST_SCORE = 1e-3


def detections(outputs: Outputs) -> tuple[Array, Array, Array]:
    """Return boxes (n, 4), scores and classes."""
    real = {name: np.asarray(a, np.float64) for name, a in outputs.items()}
    rows = next((a for a in real.values() if a.ndim >= 2 and a.shape[-1] == 6), None)
    if rows is not None:
        flat = rows.reshape(-1, 6)
        flat = flat[flat[:, 4] > _LEAST_SCORE]
        return flat[:, :4], flat[:, 4], flat[:, 5].astype(np.int64)
    boxes = next((a for a in real.values() if a.ndim >= 2 and a.shape[-1] == 4), None)
    others = {n: a.reshape(-1) for n, a in real.items() if boxes is not None and a is not boxes}
    flat_boxes = np.zeros((0, 4)) if boxes is None else boxes.reshape(-1, 4)
    fitting = {n: a for n, a in others.items() if a.size == len(flat_boxes)}
    scores = _named(fitting, ("score", "conf"))
    classes = _named(fitting, ("label", "class"))
    if boxes is None or scores is None:
        shapes = ", ".join(f"`{name}` {list(a.shape)}" for name, a in outputs.items())
        raise OptionError(
            f"the outputs are no boxes that `map` reads: {shapes}",
            hint="they are rows of (x1, y1, x2, y2, score, class), or outputs called boxes, scores "
            "and labels; for others give `--metric MODULE:FUNCTION`",
        )
    kinds = np.zeros(len(scores)) if classes is None else classes
    clear = scores > _LEAST_SCORE
    return flat_boxes[clear], scores[clear], kinds[clear].astype(np.int64)


def _named(arrays: Mapping[str, Array], words: Sequence[str]) -> Array | None:
    return next((a for n, a in arrays.items() if any(w in n.lower() for w in words)), None)


def _row(outputs: Outputs, sample: Sample, index: int, label: Any) -> list[tuple[int, Array, int]]:
    """Return, for each class of the sample, scores with their hits at each overlap, and labels."""
    boxes, scores, classes = detections(outputs)
    wanted = np.asarray(label, np.float64).reshape(-1, 5)
    found = []
    for kind in np.union1d(classes, wanted[:, 0].astype(np.int64)):
        mine = np.flatnonzero(classes == kind)
        mine = mine[np.argsort(-scores[mine], kind="stable")]
        right = wanted[wanted[:, 0] == kind, 1:]
        hits = _matched(boxes[mine], right)
        found.append((int(kind), np.column_stack([scores[mine], hits]), len(right)))
    return found


def _matched(boxes: Array, right: Array) -> Array:
    """Return which boxes, the best first, meet a label of their own, overlap by overlap."""
    hits = np.zeros((len(boxes), len(_OVERLAPS)))
    if not len(boxes) or not len(right):
        return hits
    low = np.maximum(boxes[:, None, :2], right[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], right[None, :, 2:])
    both = np.clip(high - low, 0.0, None).prod(axis=2)
    area = [np.clip(b[:, 2:] - b[:, :2], 0.0, None).prod(axis=1) for b in (boxes, right)]
    overlap = both / np.maximum(area[0][:, None] + area[1] - both, 1e-12)
    for column, least in enumerate(_OVERLAPS):
        free = np.ones(len(right), np.bool_)
        for number, here in enumerate(overlap):
            best = int(np.where(free, here, -1.0).argmax())
            if free[best] and here[best] >= least:
                hits[number, column] = 1.0
                free[best] = False
    return hits


def _precision(rows: Sequence[Any]) -> float:
    by_kind: dict[int, list[tuple[Array, int]]] = {}
    for row in rows:
        for kind, scored, count in row:
            by_kind.setdefault(kind, []).append((scored, count))
    averages = []
    for parts in by_kind.values():
        total = sum(count for _, count in parts)
        if not total:
            continue  # a class that no label has
        scored = np.concatenate([part for part, _ in parts])
        hits = scored[np.argsort(-scored[:, 0], kind="stable"), 1:]
        right = hits.cumsum(axis=0)
        precision = right / np.arange(1, len(hits) + 1)[:, None]
        precision = np.maximum.accumulate(precision[::-1], axis=0)[::-1]
        for column in range(len(_OVERLAPS)):
            at = np.searchsorted(right[:, column] / total, _RECALLS)
            padded = np.append(precision[:, column], 0.0)
            averages.append(float(padded[np.minimum(at, len(hits))].mean()))
    return float(np.mean(averages)) if averages else 1.0


def _boxes(outputs: Outputs, sample: Sample) -> Array:
    """Return what the float model is sure of, as labels."""
    boxes, scores, classes = detections(outputs)
    sure = scores > 0.5
    found: Array = np.column_stack([classes[sure], boxes[sure]])
    return found


MAP = Metric("map", _row, _precision, truth=_boxes)
