"""Error rates of what is read: letters (CER) and words (WER), of outputs of a recognizer.

A recognizer gives scores of letters for places in a row, (N, T, C) or (T, 1, C), and is read as
CTC is: the best letter of each place, repeats once, without the blank, which is letter 0. Source:
A. Graves et al., "Connectionist Temporal Classification", 2006. Outputs of whole numbers are
letters already.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from vermilion.errors import OptionError
from vermilion.quantize.metrics import Metric, Outputs, Sample, is_real

ALPHABET_KEY = "character"
"""Where PP-OCR's files hold their letters, one a line; the blank comes before them and a space
after them. Source: PaddleOCR, `ppocr/postprocess/rec_postprocess.py`, CTCLabelDecode."""


def edit_distance(a: Sequence[Any], b: Sequence[Any]) -> int:
    """Return how many symbols must be changed, added or dropped (Levenshtein)."""
    row = list(range(len(b) + 1))
    for i, one in enumerate(a, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(b, 1):
            before, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, before + (one != other))
    return row[-1]


def read(outputs: Outputs, alphabet: Sequence[str]) -> list[Any]:
    """Return the letters that are read, or their numbers where there is no alphabet."""
    first = next(iter(outputs.values()))
    real = next((array for array in outputs.values() if is_real(array)), None)
    if real is None:
        numbers = first.reshape(-1).tolist()
    else:
        if real.ndim == 3 and real.shape[1] == 1 < real.shape[0]:
            real = real.transpose(1, 0, 2)
        best = real.argmax(axis=-1)
        best = best.reshape(1, -1) if best.ndim < 2 else best.reshape(len(best), -1)
        numbers = [int(n) for row in best for n in row[np.append(True, row[1:] != row[:-1])] if n]
    if not alphabet:
        return numbers
    return [alphabet[n] if n < len(alphabet) else "\N{REPLACEMENT CHARACTER}" for n in numbers]


def alphabet_of(text: str | None) -> list[str]:
    """Return letters by number from what a model's file says of them."""
    return ["", *text.split("\n"), " "] if text else []


def error_rate(name: str, alphabet: Sequence[str]) -> Metric:
    """Return `cer` or `wer`, in parts of the letters or words that there are.

    More wrong than there are letters counts as all of them: so one line can lose only so much.
    """
    by_words = name == "wer"

    def symbols(letters: Sequence[Any] | str) -> Sequence[Any]:
        if not by_words:
            return letters
        if any(not isinstance(letter, str) for letter in letters):
            raise OptionError(
                "`wer` needs an alphabet to know words",
                hint=f"put the letters, one a line, under `{ALPHABET_KEY}` into the model's "
                "metadata, or take `cer`",
            )
        return "".join(letters).split()

    def row(outputs: Outputs, sample: Sample, index: int, label: Any) -> tuple[int, int]:
        given = label if isinstance(label, str) else np.asarray(label).reshape(-1).tolist()
        if isinstance(label, str) and not alphabet:
            raise OptionError(
                f"labels are text, and nothing says which letter each of `{name}`'s classes is",
                hint=f"put the letters, one a line, under `{ALPHABET_KEY}` into the model's "
                "metadata, or give labels as numbers",
            )
        right, found = symbols(given), symbols(read(outputs, alphabet))
        return min(edit_distance(right, found), max(1, len(right))), max(1, len(right))

    def figure(rows: Sequence[Any]) -> float:
        return float(sum(r[0] for r in rows) / sum(r[1] for r in rows))

    def truth(outputs: Outputs, sample: Sample) -> list[Any]:
        return read(outputs, alphabet)

    weights: Callable[[Sequence[Any]], Sequence[float]] = lambda rows: [float(r[1]) for r in rows]  # noqa: E731
    return Metric(name, row, figure, larger_is_better=False, weights=weights, truth=truth)
