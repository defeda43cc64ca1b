"""A hybrid folder's configuration: written in today's form or AMD's, and opened by our engine."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from vermilion.errors import ModelError, OptionError
from vermilion.files import read_object
from vermilion.llm.genai_config import OLD_KEYS, GenaiConfig, read_genai_config
from vermilion.llm.genai_write import Era, ProviderRequest, with_provider
from vermilion.llm.plugins.identity import Number, parse_number
from vermilion.store.namespaces import PROGRAMS
from vermilion.store.signature import is_signed_here
from vermilion.store.store import Store

HybridEra = Literal["stock", "1.6", "1.7"]
"""Whose keys are written: onnxruntime-genai's own, AMD's up to 1.6, AMD's from 1.7 on."""

PREFILL, DECODE = "prefill", "decode"
PREFILL_FILE, DECODE_FILE = "prefill.onnx", "decode/model.onnx"


def check_source(config: GenaiConfig) -> None:
    """Raise ModelError for a folder that is no plain decoder: hybrid already, or the vendor's."""
    where = config.where
    if isinstance(config.decoder.get("pipeline"), list):
        raise ModelError(
            "this folder has a pipeline already: it is a hybrid model, not one to make it from",
            where=where,
            hint="name the folder that `vermilion llm build` or the model builder wrote",
        )
    options = config.decoder.get("session_options")
    session: Mapping[str, Any] = options if isinstance(options, dict) else {}
    entries = session.get("provider_options")
    names = [name for entry in entries or () if isinstance(entry, dict) for name in entry]
    old = [key for key in (*OLD_KEYS, "external_data_file") if key in session]
    if old or "RyzenAI" in names:
        release = "1.6 or before" if old else "1.7 or later"
        raise ModelError(
            f"this folder was made by the vendor's tools for Ryzen AI {release}: its weights are"
            " packed for that release",
            where=where,
            hint="begin from the folder that the model builder wrote",
        )


def hybrid_data(
    config: GenaiConfig, inputs: Sequence[str], outputs: Sequence[str], era: HybridEra
) -> dict[str, object]:
    """Return the configuration: two stages, chosen by whether one token comes or several.

    Whatever provider the source names is left out: both stages run on the CPU unless an era's
    entries are asked for. Those name no packed weights, which only the vendor's tools can write.
    """
    data = _on_cpu(config)
    model = data["model"]
    model["type"] = "decoder-pipeline"
    decoder = model["decoder"]
    del decoder["filename"]
    names = {"inputs": list(inputs), "outputs": list(outputs)}
    decoder["pipeline"] = [
        {PREFILL: {"filename": PREFILL_FILE, **names, **_runs(prompt=True)}},
        {DECODE: {"filename": DECODE_FILE, **names, **_runs(prompt=False)}},
    ]
    if era == "stock":
        return data
    return _of_era(GenaiConfig(config.folder, data), era)


def decode_data(config: GenaiConfig) -> dict[str, object]:
    """Return the configuration of the decode stage as a folder of its own, on the CPU."""
    data = _on_cpu(config)
    data["model"]["decoder"]["filename"] = PurePosixPath(DECODE_FILE).name
    return data


def _on_cpu(config: GenaiConfig) -> dict[str, Any]:
    data: dict[str, Any] = copy.deepcopy(dict(config.data))
    options = config.decoder.get("session_options")
    data["model"]["decoder"]["session_options"] = {
        **(options if isinstance(options, dict) else {}), "provider_options": [],
    }  # fmt: skip
    return data


def _runs(*, prompt: bool) -> dict[str, bool]:
    return {"run_on_prompt": prompt, "run_on_token_gen": not prompt}


def _of_era(config: GenaiConfig, era: Era) -> dict[str, object]:
    """Write the vendor's entries into the options that both stages share.

    A stage's own entries would stay when a program clears the providers, and the folder would
    open nowhere else.
    """
    plain = GenaiConfig(config.folder, _without_pipeline(config.data))
    options: Any = copy.deepcopy(
        with_provider(plain, ProviderRequest("ryzenai", era=era)).decoder["session_options"]
    )
    options.pop("external_data_file", None)
    for entry in options["provider_options"]:
        entry["RyzenAI"].pop("external_data_file", None)
    data: Any = copy.deepcopy(dict(config.data))
    data["model"]["decoder"]["session_options"] = options
    return dict(data)


def _without_pipeline(data: Mapping[str, object]) -> dict[str, object]:
    plain: Any = copy.deepcopy(dict(data))
    del plain["model"]["decoder"]["pipeline"]
    plain["model"]["decoder"]["filename"] = DECODE_FILE
    return dict(plain)


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
