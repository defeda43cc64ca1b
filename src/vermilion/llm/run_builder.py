"""onnxruntime-genai's model builder 0.18, started with its own arguments: a process of its own.

Gemma 3's class of it reads a configuration as transformers 4 had it, in which one base stood for
each kind of layer; transformers 5 nests them, and the builder ends in a KeyError. Here the names
that it reads are given first.
"""

from __future__ import annotations

import runpy
from collections.abc import Mapping
from importlib import import_module
from typing import Any


def _read_nested(builder: Any, config: Any) -> None:
    """Give the builder what it reads of rotations that are nested by kind of layer."""
    whole, local = (
        config.rope_parameters[name] for name in ("full_attention", "sliding_attention")
    )
    kind = whole.get("rope_type", "default")
    if kind not in ("default", "linear"):
        raise NotImplementedError(f"Gemma 3 turned by the rule `{kind}`")
    builder.rope_attrs["theta"] = whole["rope_theta"]
    # The class makes tables without factors; what the model has is put in afterwards.
    config.rope_local_base_freq = local["rope_theta"]


def main() -> None:
    """Run the builder."""
    import onnxruntime_genai.models  # noqa: F401  which puts the builders where they are looked for

    gemma: Any = import_module("builders.gemma")
    before = gemma.Gemma3Model.make_rope_init

    def make_rope_init(self: Any, config: Any) -> None:
        rope = getattr(config, "rope_parameters", None)
        if isinstance(rope, Mapping) and "full_attention" in rope:
            _read_nested(self, config)
        else:
            before(self, config)

    gemma.Gemma3Model.make_rope_init = make_rope_init
    runpy.run_module("onnxruntime_genai.models.builder", run_name="__main__")


if __name__ == "__main__":
    main()
