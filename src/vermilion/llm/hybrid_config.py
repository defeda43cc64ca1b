"""`genai_config.json` of a hybrid folder, in the form of today's onnxruntime-genai or of AMD's."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Literal

from vermilion.errors import ModelError
from vermilion.llm.genai_config import GenaiConfig
from vermilion.llm.genai_keys import OLD_KEYS
from vermilion.llm.genai_write import Era, ProviderRequest, with_provider

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
