"""Every architecture that is read: random weights on our own code, against transformers.

    python bench/llm_architectures.py [--only NAME …]

Each model is made by transformers, saved, opened as a folder and read by the engine in float32: a
prompt of 30 tokens as a whole, then 10 tokens one by one, over windows of 6 where it has any. The
error is the largest difference of a logit over the largest logit. The table of
`docs/llm-architectures.md` is what this prints.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from vermilion.llm.decoder import EngineOptions, open_decoder
from vermilion.llm.open_model import read_model_config

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
models: Any = importlib.import_module("random_models")

LONG, SHORT = 40, 30


def error_of(name: str, folder: Path, cache: Path) -> float:
    """Return the largest difference of a logit, over the largest logit."""
    model: Any = models.MODELS[name].save(folder)
    tokens = np.random.default_rng(2).integers(3, 160, LONG)
    theirs = models.logits_of_torch(model, tokens.tolist())
    own = open_decoder(read_model_config(folder), EngineOptions(1, prefill="fp32", cache=cache))
    state = own.decoder.start(1, 64)
    found = [*state.forward(tokens[None, :SHORT], every_position=True)[0]]
    found += [state.forward(tokens[None, at : at + 1])[0] for at in range(SHORT, LONG)]
    return float(np.abs(np.array(found) - theirs).max() / np.abs(theirs).max())


def main() -> None:
    """Print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--only", nargs="*", default=list(models.MODELS))
    names = parser.parse_args().only
    with tempfile.TemporaryDirectory() as root:
        for name in names:
            error = error_of(name, Path(root) / name, Path(root) / "cache")
            print(f"| {name} | own code | {error:.0e} |", flush=True)


if __name__ == "__main__":
    main()
