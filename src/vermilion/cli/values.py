"""Values that options allow: listed by `--help`, offered by the shell's completion.

An option's metavar says which: `nchw|nhwc` are all of them, `TARGET` stands for a list of its own,
`GPU,…` for several with commas between. Those of heavier modules are kept here as words, so that
help and completion are instant; a test holds them against the code that takes them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

SCHEMES = (
    "xint8", "a8w8", "a16w8", "bf16", "fp16", "bfp16", "int4", "int4-qdq", "uint4", "uint4-qdq",
    "int8-dynamic", "mx9", "mxint8", "mxfp8e4m3", "mxfp8e5m2", "mxfp6e2m3", "mxfp6e3m2", "mxfp4",
)  # fmt: skip
METRICS = ("top1", "top5", "miou", "map", "cer", "wer", "f1", "perplexity", "cosine")
PEERS = ("ort", "openvino", "migraphx", "rocm", "directml")
LANGUAGE_PEERS = ("installed", "none", "onnxruntime-genai", "openvino-genai", "llama.cpp")
PRECISIONS = "auto|fp32|bf16|int8|fp16|bfp16"
"""The metavar of what a model is compiled in."""

Complete = Callable[[str], list[str]]


def _targets() -> tuple[str, ...]:
    from vermilion.hardware.targets.find import all_targets

    return tuple(target.name for target in all_targets())


def _gpus() -> tuple[str, ...]:
    return tuple(name for name in _targets() if name.startswith("gfx"))


NAMED: Mapping[str, Callable[[], Sequence[str]]] = {
    "TARGET": _targets,
    "GPU": _gpus,
    "SCHEME": lambda: SCHEMES,
    "METRIC": lambda: METRICS,
    "PEER": lambda: PEERS,
    "ENGINE": lambda: LANGUAGE_PEERS,
}
_SEVERAL = ",…"
_WORD = re.compile(r"[a-z0-9][A-Za-z0-9_.:-]*")


def values_of(metavar: str) -> tuple[str, ...]:
    """Return the values that a metavar stands for, none where it is no list of such."""
    found: list[str] = []
    for word in metavar.removesuffix(_SEVERAL).split("|"):
        if word in NAMED:
            found += NAMED[word]()
        elif _WORD.fullmatch(word) and "|" in metavar:
            found.append(word)
    return tuple(found)


def completion_of(metavar: str) -> Complete | None:
    """Return what completes a value; None where there is nothing to offer but files."""
    named = any(word in NAMED for word in metavar.removesuffix(_SEVERAL).split("|"))
    if not named and not values_of(metavar):
        return None
    several = metavar.endswith(_SEVERAL)

    def complete(incomplete: str) -> list[str]:
        before, comma, last = incomplete.rpartition(",") if several else ("", "", incomplete)
        given = before.split(",")
        return [
            before + comma + value
            for value in values_of(metavar)
            if value.startswith(last) and value not in given
        ]

    return complete
