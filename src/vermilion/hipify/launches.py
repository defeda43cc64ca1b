"""What a CUDA source says about launches that HIP says in another way.

`kernel<<<...>>>(...)` is HIP too and stays. `__launch_bounds__` has a second number that counts
blocks of a multiprocessor for CUDA, and waves of an execution unit for HIP.
Source: HIP documentation, "C++ language extensions", launch bounds.
"""

from __future__ import annotations

from collections.abc import Iterator

from vermilion.hipify.calls import Span, split_arguments, text_of
from vermilion.hipify.finding import Edit
from vermilion.hipify.tokens import Tokens

# 4 execution units of 64 lanes in a CDNA compute unit: `blocks` of `threads` need
# blocks * threads / 256 waves on each. An RDNA unit needs more; the number is a lower bound.
LANES_OF_A_UNIT = 256


def launch_edits(tokens: Tokens) -> Iterator[Edit]:
    """Give the edits that turn CUDA's blocks in `__launch_bounds__` into HIP's waves."""
    meaningful = tokens.meaningful
    for place, index in enumerate(meaningful):
        if tokens.kinds[index] != "word" or tokens.word(index) != "__launch_bounds__":
            continue
        arguments = split_arguments(tokens, meaningful, place + 1)
        if len(arguments) < 2 or _is_ours(tokens, arguments[1]):
            continue
        threads, blocks = (_in_one_line(tokens, span) for span in arguments[:2])
        start = tokens.starts[arguments[1][0]]
        # CUDA's third number is the size of a cluster, which AMD GPUs do not have.
        end = tokens.starts[arguments[-1][1] + 1]
        waves = f"(({blocks}) * ({threads}) + {LANES_OF_A_UNIT - 1}) / {LANES_OF_A_UNIT}"
        yield Edit(start, end, waves + "\n" * tokens.text.count("\n", start, end))


def _in_one_line(tokens: Tokens, span: Span) -> str:
    """Give an argument without its comments and line ends."""
    written = text_of(tokens, span)
    if "\n" not in written and "/" not in written:
        return written
    indices = range(span[0], span[1] + 1)
    kept = (i for i in indices if tokens.kinds[i] not in {"space", "comment"})
    return " ".join(tokens.word(i) for i in kept)


def _is_ours(tokens: Tokens, span: Span) -> bool:
    return text_of(tokens, span).endswith(f"/ {LANES_OF_A_UNIT}")
