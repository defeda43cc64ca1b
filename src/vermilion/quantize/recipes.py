"""Recipes in files: our own, a point of a Pareto front, configurations of AMD Quark and Olive.

Source of the keys: AMD Quark for ONNX 0.13, `QConfig.to_dict` and the fields of
`QuantizationConfig`; Olive 0.11, the options of its quantization passes. What a configuration says
that is done otherwise here is told in a note; what would give another model is an error.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vermilion.errors import OptionError
from vermilion.files import read_object, shown
from vermilion.quantize.options import from_json
from vermilion.quantize.quark_recipes import (
    QUARK_KEYS,
    Found,
    exclusions,
    four_bits,
    legacy_settings,
    preset_settings,
    spec_settings,
)
from vermilion.quantize.recipe_keys import Keys

_PASSES = (
    *("OnnxQuantization", "OnnxStaticQuantization", "OnnxDynamicQuantization"),
    *("QuarkQuantization", "VitisAIQuantization", "OnnxFloatToFloat16"),
    *("OnnxMatMul4Quantizer", "OnnxBlockWiseRtnQuantization", "OnnxHqqQuantization"),
)


@dataclass(frozen=True)
class Recipe:
    """Options by name, and what of the file is done otherwise."""

    settings: Mapping[str, Any]
    notes: tuple[str, ...] = field(default=())


def read_recipe(file: Path, point: int | None = None) -> Recipe:
    """Read a recipe; of a Pareto front that one `point`.

    Raises: OptionError for a file that is none, or one that asks for what is not done here.
    """
    found = read_object(file, OptionError, hint="give a recipe, as in docs/quantize.md")
    try:
        return _read(found, point)
    except OptionError as error:
        raise OptionError(error.message, where=error.where or str(file), hint=error.hint) from error


def _read(found: Mapping[str, Any], point: int | None) -> Recipe:
    if "points" in found:
        return _point(found["points"], point)
    if point is not None:
        raise OptionError("a point is of a Pareto front, and the recipe is none")
    notes: list[str] = []
    if "passes" in found or found.get("type") in _PASSES:
        return _of_olive(found, notes)
    keys = Keys(found, notes)
    for name in ("quant_config", "global_quant_config"):
        if name in keys:
            quark = keys.value(name)
            keys.finish()
            quark = {"config_template": quark} if isinstance(quark, str) else quark
            return _of_quark(Keys(quark, notes, name))
    if found.keys() & QUARK_KEYS:
        return _of_quark(keys)
    return Recipe(from_json(found).as_json())


def _point(points: object, number: int | None) -> Recipe:
    if not isinstance(points, list) or not points:
        raise OptionError(f"`points` is {shown(points)}", hint="give what `--pareto` wrote")
    last = len(points) - 1
    if number is None:
        raise OptionError(
            f"the recipe is a Pareto front of {last + 1} points", hint="pick one: `--point`"
        )
    if not 0 <= number <= last:
        raise OptionError(f"the Pareto front has no point {number}", hint=f"it has 0 to {last}")
    recipe = points[number].get("recipe") if isinstance(points[number], dict) else None
    if not isinstance(recipe, dict):
        raise OptionError(f"point {number} has no recipe", hint="give what `--pareto` wrote")
    return Recipe(from_json(recipe).as_json())


def _of_quark(keys: Keys) -> Recipe:
    settings = spec_settings(keys) if "global_config" in keys else legacy_settings(keys)
    return _checked(settings, keys.notes)


def _checked(settings: Found, notes: list[str]) -> Recipe:
    return Recipe(from_json(settings).as_json(), tuple(dict.fromkeys(notes)))


def _of_olive(config: Mapping[str, Any], notes: list[str]) -> Recipe:
    rows = config.get("passes", {"": config})
    listed = list(rows.values()) if isinstance(rows, dict) else rows
    flat = [one for row in _list(listed) for one in (row if isinstance(row, list) else [row])]
    if not all(isinstance(one, dict) for one in flat):
        raise OptionError("`passes` holds what is no object", hint="write them as Olive does")
    wanted = [one for one in flat if one.get("type") in _PASSES]
    if len(wanted) != 1:
        raise OptionError(
            f"the configuration has {len(wanted)} passes that quantize a file of ONNX",
            hint=f"one of them is read: {', '.join(sorted(_PASSES))}",
        )
    one = wanted[0]
    notes += [f"the pass `{row.get('type')}` is not done" for row in flat if row is not one]
    inner = one.get("config") or {}
    if not isinstance(inner, dict):
        raise OptionError(f"`config` is {shown(inner)}", hint="it takes an object")
    given = {n: v for n, v in {**one, **inner}.items() if n not in {"type", "config"}}
    return _checked(_olive_settings(str(one["type"]), Keys(given, notes)), notes)


def _list(found: object) -> list[Any]:
    if not isinstance(found, list):
        raise OptionError(f"`passes` is {shown(found)}", hint="it takes an object or a list")
    return found


def _olive_settings(kind: str, keys: Keys) -> Found:
    mode = keys.word("quant_mode", "static")
    if kind == "OnnxFloatToFloat16":
        return _half(keys)
    if kind in {"OnnxMatMul4Quantizer", "OnnxBlockWiseRtnQuantization", "OnnxHqqQuantization"}:
        return _blocks(kind, keys)
    if kind == "OnnxDynamicQuantization" or mode == "dynamic":
        return _dynamic(keys)
    if "precision" in keys:
        keys.put("weight_type", keys.value("precision"))
    extra = keys.value("extra_options") or {}
    if not isinstance(extra, dict):
        raise keys.error("extra_options", extra, "an object")
    exposed = {name: keys.value(name) for name in _EXPOSED if name in keys}
    if kind == "VitisAIQuantization":
        keys.put("calibrate_method", "MinMSE")
        keys.put("activation_type", "QUInt8")
        extra = {"ActivationSymmetric": True, **extra}
        keys.put("enable_npu_cnn", keys.flag("enable_dpu"))
    keys.put("extra_options", {**extra, **exposed})
    settings = legacy_settings(keys)
    if kind in {"OnnxQuantization", "OnnxStaticQuantization"}:
        # ONNX Runtime's own quantizer equalizes nothing.
        settings["equalize"] = False
    return settings


# What Olive takes beside `extra_options`, and puts into them.
_EXPOSED = (
    *("ActivationSymmetric", "WeightSymmetric", "AddQDQPairToWeight", "MatMulConstBOnly"),
    *("extra.Sigmoid.nnapi", "EnableSubgraph", "ForceQuantizeNoInputCheck"),
)


def _dynamic(keys: Keys) -> Found:
    settings = preset_settings("UINT8_DYNAMIC_QUANT", keys.notes)
    settings["per_channel"] = keys.flag("per_channel", False)
    for name in ("activation_type", "calibrate_method", "weight_type", "precision"):
        keys.word(name)  # activations are uint8 by their own range, and weights int8, in any case
    keys.flag("MatMulConstBOnly")  # only products with constants are made dynamic here
    exclusions(settings, keys)
    extra = keys.inner("extra_options")
    extra.flag("MatMulConstBOnly")
    for part in (extra, keys):
        part.finish()
    return settings


def _half(keys: Keys) -> Found:
    """Read a conversion to float16: kinds and nodes that stay in float32."""
    kinds, names = keys.names("op_block_list"), keys.names("node_block_list")
    if not keys.flag("keep_io_types", False):
        keys.notes.append("inputs and outputs keep their type")
    if keys.number("max_finite_val", 65504.0) != 65504.0 or "min_positive_val" in keys:
        keys.notes.append("constants are rounded to float16, and not clipped otherwise")
        keys.value("min_positive_val")
    keys.finish()
    excluded = [*names, *([f":{','.join(kinds)}"] if kinds else [])]
    return {"scheme": "fp16", **({"exclude": excluded} if excluded else {})}


def _blocks(kind: str, keys: Keys) -> Found:
    four_bits(keys.value("bits") or 4)
    four_bits(keys.value("precision") or 4)
    symmetric = keys.flag("is_symmetric", keys.flag("sym", kind != "OnnxHqqQuantization"))
    if "algorithm" in keys or kind == "OnnxHqqQuantization":
        keys.notes.append("weights are rounded with compensation instead of by HQQ or k-quant")
        keys.value("algorithm")
    settings: Found = {
        "scheme": "int4" if symmetric else "uint4",
        "block": keys.number("block_size", 128),
    }
    exclusions(settings, keys)
    if kind == "OnnxBlockWiseRtnQuantization":
        settings["rounding"] = "nearest"
    keys.finish()
    return settings
