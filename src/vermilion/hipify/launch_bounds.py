"""`__launch_bounds__`: CUDA counts blocks of a multiprocessor, HIP waves of an execution unit."""

from __future__ import annotations

from collections.abc import Iterator

from vermilion.hipify.finding import Edit
from vermilion.hipify.names import Names, Rename
from vermilion.hipify.tokens import Span, Tokens, split_arguments, text_of

# 4 execution units of 64 lanes in a CDNA compute unit: `blocks` of `threads` need
# blocks * threads / 256 waves on each. An RDNA unit needs more; the number is a lower bound.
LANES_OF_A_UNIT = 256


def launch_edits(tokens: Tokens, names: Names) -> Iterator[Edit]:
    """Yield the edits that turn CUDA's blocks in `__launch_bounds__` into HIP's waves.

    `kernel<<<...>>>(...)` is HIP too and stays. The second number of `__launch_bounds__` counts
    blocks of a multiprocessor for CUDA, and waves of an execution unit for HIP.
    Source: HIP documentation, "C++ language extensions", launch bounds.
    """
    meaningful = tokens.meaningful
    for place, index in enumerate(meaningful):
        if tokens.kinds[index] != "word" or tokens.word(index) != "__launch_bounds__":
            continue
        arguments = split_arguments(tokens, meaningful, place + 1)
        if len(arguments) < 2 or _is_ours(tokens, arguments[1]):
            continue
        # What is written of the blocks stays where it is, between two new pieces.
        first, last = arguments[1]
        begin, end = tokens.starts[first], tokens.starts[last + 1]
        threads = _translated(tokens, names, arguments[0])
        waves = f") * ({threads}) + {LANES_OF_A_UNIT - 1}) / {LANES_OF_A_UNIT}"
        # CUDA's third number is the size of a cluster, which AMD GPUs do not have.
        dropped = tokens.starts[arguments[-1][1] + 1]
        yield Edit(begin, begin, "((")
        yield Edit(end, dropped, waves + "\n" * tokens.text.count("\n", end, dropped))


def _translated(tokens: Tokens, names: Names, span: Span) -> str:
    """Return an argument once more, in one line, without comments, with HIP's names."""
    words = []
    for index in range(span[0], span[1] + 1):
        if tokens.kinds[index] in {"space", "comment"}:
            continue
        word = tokens.word(index)
        found = names.look_up(word) if tokens.kinds[index] == "word" else None
        words.append(found.hip if isinstance(found, Rename) else word)
    return " ".join(words)


def _is_ours(tokens: Tokens, span: Span) -> bool:
    return text_of(tokens, span).endswith(f"/ {LANES_OF_A_UNIT}")
