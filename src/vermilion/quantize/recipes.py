"""Recipes in files: our own, a point of a front, and the configurations of AMD Quark and Olive.

Source of the keys: AMD Quark for ONNX 0.13, `QConfig.to_dict` and the fields of
`QuantizationConfig`; Olive 0.11, the options of its quantization passes. What a configuration says
that is done otherwise here is told in a note; what would give another model is an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vermilion.errors import OptionError
from vermilion.quantize.options import from_json
from vermilion.quantize.quark_recipes import (
    QUARK_KEYS,
    Found,
    legacy_settings,
    preset_settings,
    spec_settings,
)

_PASSES = frozenset(
    {
        *("OnnxQuantization", "OnnxStaticQuantization", "OnnxDynamicQuantization"),
        *("QuarkQuantization", "VitisAIQuantization", "OnnxFloatToFloat16"),
        *("OnnxMatMul4Quantizer", "OnnxBlockWiseRtnQuantization", "OnnxHqqQuantization"),
    }
)


@dataclass(frozen=True)
class Recipe:
    """Options by name, and what of the file is done otherwise."""

    settings: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())


def read_recipe(file: Path, point: int | None = None) -> Recipe:
    """Read a recipe; of a front that one `point`.

    Raises: OptionError for a file that is none, or one that asks for what is not done here.
    """
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise OptionError("there is no such recipe", where=str(file)) from error
    except (OSError, ValueError) as error:
        raise OptionError(f"the recipe is not JSON: {error}", where=str(file)) from error
    if not isinstance(found, dict):
        raise OptionError("the recipe is not a JSON object", where=str(file))
    try:
        return _read(found, point)
    except OptionError as error:
        raise OptionError(error.message, where=error.where or str(file), hint=error.hint) from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise OptionError(
            f"the recipe holds a value of another kind than expected: {error}", where=str(file)
        ) from error


def _read(found: Mapping[str, Any], point: int | None) -> Recipe:
    if "points" in found:
        return _point(found["points"], point)
    if point is not None:
        raise OptionError("a point is of a front, and the recipe is none")
    if "passes" in found or found.get("type") in _PASSES:
        return _of_olive(found)
    quark = found.get("quant_config", found.get("global_quant_config", found))
    if isinstance(quark, str):
        quark = {"config_template": quark}
    if quark.keys() & QUARK_KEYS:
        return _of_quark(quark)
    return Recipe(from_json(found).as_json())


def _point(points: Any, number: int | None) -> Recipe:
    last = len(points) - 1
    if number is None:
        raise OptionError(f"the recipe is a front of {last + 1} points", hint="pick one: `--point`")
    if not 0 <= number <= last:
        raise OptionError(f"the front has no point {number}", hint=f"it has 0 to {last}")
    return Recipe(from_json(points[number]["recipe"]).as_json())


def _of_quark(config: Mapping[str, Any]) -> Recipe:
    notes: list[str] = []
    if "global_config" in config:
        settings = spec_settings(config, notes)
    else:
        settings = legacy_settings(config, notes)
    return _checked(settings, notes)


def _checked(settings: Found, notes: list[str]) -> Recipe:
    return Recipe(from_json(settings).as_json(), tuple(dict.fromkeys(notes)))


def _of_olive(config: Mapping[str, Any]) -> Recipe:
    rows = config.get("passes", {"": config})
    listed = rows if isinstance(rows, list) else list(rows.values())
    flat = [one for row in listed for one in (row if isinstance(row, list) else [row])]
    wanted = [one for one in flat if one.get("type") in _PASSES]
    if len(wanted) != 1:
        raise OptionError(
            f"the configuration has {len(wanted)} passes that quantize a file of ONNX",
            hint=f"one of them is read: {', '.join(sorted(_PASSES))}",
        )
    one = wanted[0]
    notes = [f"the pass `{row.get('type')}` is not done" for row in flat if row is not one]
    keys = {**one, **one.get("config", {})}
    keys = {n: v for n, v in keys.items() if n not in {"type", "config"} and v is not None}
    return _checked(_olive_settings(str(one["type"]), keys, notes), notes)


# Of a pass: how data gets in and how files are written, which is for the command to say.
_NOT_OF_A_RECIPE = frozenset(
    {
        *("data_config", "user_script", "script_dir", "data_dir", "batch_size", "dataloader_func"),
        *("quant_preprocess", "save_as_external_data", "all_tensors_to_one_file", "quant_mode"),
        *("external_data_name", "size_threshold", "convert_attribute", "disable_search"),
        *("prepare_qnn_config", "quant_format", "host", "evaluator"),
    }
)


def _olive_settings(kind: str, keys: dict[str, Any], notes: list[str]) -> Found:
    is_dynamic = kind == "OnnxDynamicQuantization" or keys.get("quant_mode") == "dynamic"
    keys = {n: v for n, v in keys.items() if n not in _NOT_OF_A_RECIPE}
    if kind == "OnnxFloatToFloat16":
        return {"scheme": "fp16"}
    if kind in {"OnnxMatMul4Quantizer", "OnnxBlockWiseRtnQuantization", "OnnxHqqQuantization"}:
        return _blocks(kind, keys, notes)
    if is_dynamic:
        settings = preset_settings("UINT8_DYNAMIC_QUANT", notes)
        settings["per_channel"] = bool(keys.get("per_channel", False))
        return settings
    if "precision" in keys:
        keys.setdefault("weight_type", keys.pop("precision"))
    if kind == "VitisAIQuantization":
        keys.setdefault("calibrate_method", "MinMSE")
        keys.setdefault("activation_type", "QUInt8")
        keys.setdefault("extra_options", {}).setdefault("ActivationSymmetric", True)
    is_plain = kind in {"OnnxQuantization", "OnnxStaticQuantization"}
    for name in ("ActivationSymmetric", "WeightSymmetric"):
        if name in keys:
            keys.setdefault("extra_options", {})[name] = keys.pop(name)
    settings = legacy_settings(keys, notes)
    if is_plain:
        # ONNX Runtime's own quantizer equalizes nothing.
        settings["equalize"] = False
    return settings


def _blocks(kind: str, keys: Mapping[str, Any], notes: list[str]) -> Found:
    bits = keys.get("bits", keys.get("precision", 4))
    if bits not in (4, "int4", "uint4"):
        raise OptionError(f"weights of {bits} bits are not made", hint="4 bits are")
    symmetric = bool(keys.get("is_symmetric", keys.get("sym", kind != "OnnxHqqQuantization")))
    if kind == "OnnxHqqQuantization" or "algorithm" in keys:
        notes.append("weights are rounded with compensation instead of by HQQ or k-quant")
    settings: Found = {
        "scheme": "int4" if symmetric else "uint4",
        "block": int(keys.get("block_size", 128)),
        "exclude": list(keys.get("nodes_to_exclude") or ()),
    }
    if kind == "OnnxBlockWiseRtnQuantization":
        settings["rounding"] = "nearest"
    return settings
