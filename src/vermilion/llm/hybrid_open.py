"""Opening a hybrid folder on our own engine: its decode stage, and the programs it came with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from vermilion.errors import ModelError, OptionError
from vermilion.llm.genai_config import GenaiConfig, read_genai_config
from vermilion.llm.hybrid_config import DECODE
from vermilion.llm.json_file import read_object
from vermilion.llm.plugins.identity import Number, parse_number
from vermilion.store.namespaces import PROGRAMS
from vermilion.store.signature import is_signed_here
from vermilion.store.store import Store

REPORT = "hybrid.json"
OPERATORS = "operators"
FORMAT = 1

_MAX_FILES = 256


@dataclass(frozen=True)
class HybridPlace:
    """Where the engine finds a hybrid model, how it is to open it, and why code was left out.

    `prefill` is in what prompts are computed, `cache` where the programs that came with it lie.
    """

    config: GenaiConfig
    prefill: Number
    cache: Path
    reason: str = ""


def is_hybrid(folder: Path) -> bool:
    """Say whether a folder was made by `model_generate`."""
    return (folder / REPORT).is_file() and (folder / DECODE).is_dir()


def hybrid_place(folder: Path, cache: Path | None = None) -> HybridPlace:
    """Return what the engine opens instead of a hybrid folder: the same model, prompts as it says.

    Machine code that this machine's plugins brought is put where the engine looks for it, in
    `cache`, by default the user's own; code from elsewhere is not, and the engine compiles its own.

    Raises: ModelError for a folder that is damaged, or of another version.
    """
    where = folder / REPORT
    data = read_object(where)
    if data.get("format") != FORMAT:
        raise ModelError(
            f"the hybrid folder has format {data.get('format')!r}, this version reads {FORMAT}",
            where=str(where),
            hint="make it again with `vermilion model_generate --hybrid`",
        )
    try:
        number = parse_number(str(data.get("number")))
    except OptionError as error:
        raise ModelError(
            f"the hybrid folder computes prompts in {data.get('number')!r}, which is not known",
            where=str(where),
            hint="make it again with `vermilion model_generate --hybrid`",
        ) from error
    store = Store(cache)
    reason = _install(folder / OPERATORS, data, store)
    config = read_genai_config(folder / DECODE)
    return HybridPlace(config, number, store.root, reason)


def programs_digest(digests: Mapping[str, str]) -> str:
    """Return the digest that is signed."""
    return sha256(json.dumps(sorted(digests.items())).encode()).hexdigest()


def _install(folder: Path, data: Mapping[str, Any], store: Store) -> str:
    """Copy programs into the cache; return why they were not, empty if they were."""
    digests = data.get("programs")
    if not isinstance(digests, dict) or not digests:
        return "the folder has no programs for this machine"
    if not all(isinstance(value, str) for value in digests.values()):
        return "its list of programs is damaged"
    if not is_signed_here(programs_digest(digests), str(data.get("seal", ""))):
        return "its programs were compiled elsewhere"
    if len(digests) > _MAX_FILES:
        return "it has more programs than a model needs"
    # The list is signed here, so its names are ours; the files may be anybody's.
    for key in sorted({Path(name).parent.name for name in digests}):
        problem = store.adopt(PROGRAMS, key, folder / PROGRAMS.name / key)
        if problem:
            return f"its program `{key}`: {problem}"
    return ""
