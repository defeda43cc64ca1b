"""What AMD Quark's configurations mean in our options: presets, both forms of configurations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vermilion.errors import OptionError
from vermilion.files import shown
from vermilion.quantize.formats import SCHEMES
from vermilion.quantize.recipe_keys import Keys

Found = dict[str, Any]

QUARK_KEYS = frozenset(
    {
        *("global_config", "config_template", "calibrate_method", "activation_type"),
        *("weight_type", "enable_npu_cnn", "extra_options"),
    }
)

# What is done with care here and not there: rounding, biases, room for what was not seen.
_AS_THERE: Found = {"rounding": "nearest", "correct_bias": False, "headroom": False}
_ALL: Found = {**_AS_THERE, "all_tensors": True, "per_channel": False}

_SIMPLE = {
    name.upper(): name
    for name in ("bf16", "fp16", "bfp16", "mx9", "mxint8", "mxfp8e4m3", "mxfp8e5m2")
} | {"MXFP6E2M3": "mxfp6e2m3", "MXFP6E3M2": "mxfp6e3m2", "MXFP4E2M1": "mxfp4"}

# Source: AMD Quark 0.13, `custom_config.py`.
_PRESETS: Mapping[str, Found] = {
    "XINT8": {**_AS_THERE, "scheme": "xint8", "middle": True, "dpu": True, "equalize": True},
    "VINT8": {**_AS_THERE, "scheme": "xint8", "equalize": True},
    "A8W8": {**_ALL, "scheme": "a8w8", "method": "minmax", "symmetric": True, "equalize": True},
    "A16W8": {**_ALL, "scheme": "a16w8", "method": "minmax", "equalize": True},
    "S8S8_AAWS": {**_ALL, "scheme": "a8w8", "method": "percentile", "equalize": True},
    "U8S8_AAWS": {**_ALL, "scheme": "a8w8", "method": "percentile", "equalize": True},
    "S16S8_ASWS": {**_ALL, "scheme": "a16w8", "method": "percentile", "equalize": True},
    "U16S8_AAWS": {**_ALL, "scheme": "a16w8", "method": "percentile", "equalize": True},
    "INT8_CNN_DEFAULT": {**_ALL, "scheme": "a8w8", "method": "minmax", "equalize": True},
    "INT8_CNN_ACCURATE": {**_ALL, "scheme": "a8w8", "method": "percentile", "equalize": True},
    "INT8_TRANSFORMER_DEFAULT": {**_ALL, "scheme": "a8w8", "method": "minmax", "equalize": True},
    "INT8_TRANSFORMER_ACCURATE": {
        **_ALL, "scheme": "a8w8", "method": "percentile", "equalize": True,
    },
    "UINT8_DYNAMIC_QUANT": {
        "scheme": "int8-dynamic", "rounding": "nearest", "per_channel": False,
    },
    "MATMUL_NBITS": {"scheme": "int4", "block": 128, "rounding": "nearest"},
    **{name: {"scheme": scheme} for name, scheme in _SIMPLE.items()},
}  # fmt: skip

# The new form of configurations, by its constants' names.
_NEW_PRESETS: Mapping[str, Found] = {
    "XINT8_QCONFIG": {**_PRESETS["XINT8"], "middle": False, "equalize": False},
    "VINT8_QCONFIG": {**_PRESETS["VINT8"], "equalize": False},
    "A8W8_QCONFIG": {**_PRESETS["A8W8"], "method": "percentile", "equalize": False},
    "A16W8_QCONFIG": {**_PRESETS["A16W8"], "method": "percentile", "equalize": False},
    "BF16_QCONFIG": {"scheme": "bf16"},
    "BFP16_QCONFIG": {"scheme": "bfp16"},
}

_METHODS = {
    "minmax": "minmax", "percentile": "percentile", "entropy": "entropy", "minmse": "mse",
    "nonoverflow": "minmax", "layerwisepercentile": "percentile",
}  # fmt: skip
_POWERS = frozenset({"minmse", "nonoverflow"})


def preset_settings(name: str, notes: list[str]) -> Found:
    """Return the options of a preset.

    Raises: OptionError for one that is not known, or that no scheme fits.
    """
    known = {**_PRESETS, **_NEW_PRESETS}
    plain, careful = name.upper(), False
    for word in ("_ADAROUND", "_ADAQUANT"):
        careful |= word in plain
        plain = plain.replace(word, "")
    if plain not in known:
        raise OptionError(
            f"AMD Quark's preset `{name}` is not done here", hint=f"known: {', '.join(known)}"
        )
    settings = dict(known[plain])
    if careful or plain.endswith("_ACCURATE"):
        _round_carefully(settings, notes)
    if plain == "S8S8_AAWS":
        notes.append("activations are uint8, which are int8 with their zero points 128 higher")
    if plain == "U16S8_AAWS":
        notes.append("activations are int16 around zero instead of uint16")
    return settings


def _round_carefully(settings: Found, notes: list[str]) -> None:
    settings["rounding"] = "compensated"
    settings["correct_bias"] = True
    notes.append("weights are rounded with compensation instead of by AdaRound or AdaQuant")


def legacy_settings(keys: Keys) -> Found:
    """Return what a `QuantizationConfig` asks for: a template, and what goes before it."""
    notes, template = keys.notes, keys.word("config_template")
    extra = keys.inner("extra_options")
    settings = preset_settings(template, notes) if template else {}
    method = keys.word("calibrate_method")
    types = keys.word("activation_type"), keys.word("weight_type")
    if not template:
        settings = _types(types, method or "MinMax", extra, notes)
    else:
        is_same = not types[0] or _plain(types[0]) == _activation(settings)
        if not is_same or _plain(types[1] or "QInt8") != "int8":
            notes.append("the preset says the types, not `activation_type` and `weight_type`")
        if method and settings["scheme"] in {"a8w8", "a16w8"}:
            settings["method"] = _method(method, notes)
        elif method and not (settings["scheme"] == "xint8" and _last(method) == "minmse"):
            notes.append(f"the preset says how ranges are chosen, not `{method}`")
    if keys.flag("use_dynamic_quant", False):
        settings = preset_settings("UINT8_DYNAMIC_QUANT", notes)
    _taken(settings, "per_channel", keys.flag("per_channel"))
    _taken(settings, "equalize", keys.flag("include_cle"))
    enabled = keys.flag("enable_npu_cnn")
    _taken(settings, "dpu", None if enabled is None else enabled and settings["scheme"] == "xint8")
    if keys.flag("include_sq", False):
        settings["migrate"] = True
    if keys.flag("include_fast_ft", False) or "FastFinetune" in extra:
        _round_carefully(settings, notes)
    if keys.flag("include_auto_mp", False):
        notes.append("precision is not mixed by itself; `--min-sqnr` or `--pareto` does it")
    exclusions(settings, keys)
    _extra(settings, extra)
    keys.finish()
    return settings


def _activation(settings: Found) -> str:
    """Return the type that activations have in another tool's words."""
    if settings["scheme"] == "a8w8":
        return "int8" if settings.get("symmetric") else "uint8"
    return {"xint8": "uint8" if settings.get("middle") else "int8"}.get(settings["scheme"], "int16")


def _taken(settings: Found, name: str, value: bool | None) -> None:
    if value is not None:
        settings[name] = value


def _types(types: tuple[str, str], method: str, extra: Keys, notes: list[str]) -> Found:
    """Choose the scheme of plain types and a method."""
    activation, weight = (_plain(kind or "QInt8") for kind in types)
    floats = {"bfloat16": "bf16", "float16": "fp16", "bfp": "bfp16"}
    if activation in floats:
        return {"scheme": floats[activation]}
    _weights_are_int8(weight, notes)
    symmetric = extra.flag("ActivationSymmetric", False)
    if _last(method) in _POWERS:
        settings = {**_PRESETS["XINT8"], "dpu": False, "middle": activation == "uint8"}
    elif activation in {"int16", "uint16"}:
        settings = {**_ALL, "scheme": "a16w8", "method": _method(method, notes)}
        if activation == "uint16":
            notes.append("activations are int16 around zero instead of uint16")
    elif activation in {"int8", "uint8"}:
        settings = {**_ALL, "scheme": "a8w8", "method": _method(method, notes)}
        settings |= {"symmetric": symmetric, "middle": symmetric and activation == "uint8"}
        if activation == "int8" and not symmetric:
            notes.append("activations are uint8, which are int8 with zero points 128 higher")
    else:
        raise OptionError(f"activations of the type `{activation}` are not made")
    return {**settings, "equalize": True}


def _weights_are_int8(kind: str, notes: list[str]) -> None:
    if kind not in {"int8", "uint8"}:
        raise OptionError(f"weights of the type `{kind}` are not made", hint="int8 ones are")
    if kind == "uint8":
        notes.append("weights are int8 instead of uint8")


def _last(word: str) -> str:
    """Return `minmse` of `PowerOfTwoMethod.MinMSE`."""
    return word.rpartition(".")[2].lower()


def _plain(kind: str) -> str:
    """Return `int8` of `QInt8`, `QuantType.QInt8` or `int8`."""
    word = kind.rpartition(".")[2]
    return (word[1:] if word[:1] == "Q" else word).lower()


def _method(word: str, notes: list[str]) -> str:
    if _last(word) not in _METHODS:
        notes.append(f"ranges are chosen by percentile instead of `{word}`")
        return "percentile"
    return _METHODS[_last(word)]


def exclusions(settings: Found, keys: Keys) -> None:
    """Read which nodes are left out, by name and by kind."""
    left_out = keys.names("nodes_to_exclude")
    only, others = keys.names("op_types_to_quantize"), keys.names("op_types_to_exclude")
    if only:
        left_out = [*left_out, f":!{','.join(only)}"]
    elif others:
        left_out = [*left_out, f":{','.join(others)}"]
    if left_out:
        settings["exclude"] = left_out


def _extra(settings: Found, extra: Keys) -> None:
    symmetric = extra.flag("ActivationSymmetric")
    if settings["scheme"] == "a8w8":
        _taken(settings, "symmetric", symmetric)
    if extra.flag("WeightSymmetric") is False:
        extra.notes.append("weights keep zero points of zero")
    percentile = extra.number("Percentile", 99.999)
    if settings.get("method") == "percentile" and percentile != 99.999:
        extra.notes.append(f"the percentile is 99.999 instead of {percentile:g}")
    if extra.flag("SmoothQuant", False):
        settings["migrate"] = True
    has_wide_biases = settings["scheme"] in {"a8w8", "a16w8"}
    if extra.flag("Int32Bias", has_wide_biases) is not has_wide_biases:
        extra.notes.append("biases have the type that the scheme gives them, not `Int32Bias`")
    if "MatMulNBitsParams" in extra:
        blocks = extra.inner("MatMulNBitsParams")
        settings |= {"scheme": "int4" if blocks.flag("Symmetric", True) else "uint4"}
        settings["block"] = blocks.number("GroupSize", 128)
        four_bits(blocks.number("Bits", 4))
        if blocks.word("Algorithm", "DEFAULT").upper() != "DEFAULT":
            extra.notes.append("weights are rounded with compensation")
            settings["rounding"] = "compensated"
        blocks.finish()
    extra.value("FastFinetune")  # read before: rounding is compensated instead
    extra.finish()


def four_bits(bits: object) -> None:
    """Raise where weights are to have another number of bits."""
    if bits not in (4, "4", "int4", "uint4"):
        raise OptionError(f"weights of {shown(bits)} bits are not made", hint="4 bits are")


# By data type of the new form: scheme and options.
_TYPES: Mapping[str, Found] = {
    "Int8": {**_ALL, "scheme": "a8w8", "symmetric": True},
    "UInt8": {**_ALL, "scheme": "a8w8"},
    "Int16": {**_ALL, "scheme": "a16w8"},
    "UInt16": {**_ALL, "scheme": "a16w8"},
    "BFloat16": {"scheme": "bf16"},
    "Float16": {"scheme": "fp16"},
    "BFP16": {"scheme": "bfp16"},
    "MXInt8": {"scheme": "mxint8"},
}


def spec_settings(keys: Keys) -> Found:
    """Return what a `QConfig` asks for, as `to_dict` writes it."""
    notes, whole = keys.notes, keys.inner("global_config")
    activation = whole.inner("input_tensors" if "input_tensors" in whole else "activation")
    weight, extra = whole.inner("weight"), keys.inner("extra_options")
    kind = activation.word("data_type", "Int8")
    settings = dict(_TYPES.get(kind, {"scheme": _SIMPLE.get(kind.upper(), "")}))
    if settings["scheme"] not in SCHEMES:
        raise OptionError(f"tensors of the type `{kind}` are not made here")
    scheme = SCHEMES[settings["scheme"]].name
    is_power = activation.word("scale_type").endswith("PowerOf2")
    method = activation.word("calibration_method", "MinMax")
    symmetric = activation.flag("symmetric", kind == "Int8")
    dpu = extra.flag("EnableNPUCnn", True)
    if is_power and scheme == "a8w8":
        settings = {**_NEW_PRESETS["XINT8_QCONFIG"], "middle": kind == "UInt8", "dpu": dpu}
    elif scheme in {"a8w8", "a16w8"}:
        settings["method"] = _method(method, notes)
        if scheme == "a8w8":
            settings |= {"symmetric": symmetric, "middle": symmetric and kind == "UInt8"}
    _weight_spec(weight, scheme, kind, settings)
    if not activation.word("quant_granularity", "Tensor").endswith("Tensor"):
        notes.append("activations have a scale a tensor")
    for part in (activation, weight, whole):
        part.finish()
    _layers(keys, settings)
    _algorithms(keys, settings)
    _extra(settings, extra)
    keys.finish()
    return settings


def _weight_spec(weight: Keys, scheme: str, kind: str, settings: Found) -> None:
    """Hold what is said of weights against what the scheme makes of them."""
    own = weight.word("data_type", kind if scheme not in {"a8w8", "a16w8"} else "Int8")
    if scheme in {"a8w8", "a16w8"}:
        _weights_are_int8(own.lower(), weight.notes)
    elif own != kind:
        raise OptionError(f"weights are `{own}` and activations `{kind}`, which is not made")
    if weight.word("quant_granularity", "Tensor").endswith("Channel"):
        settings["per_channel"] = True
    if weight.flag("symmetric", True) is False:
        weight.notes.append("weights keep zero points of zero")
    for name in ("scale_type", "calibration_method"):
        weight.word(name)  # scales of weights are the scheme's


def _layers(keys: Keys, settings: Found) -> None:
    """Read which nodes are left out, and which get a format of their own."""
    exclude: list[str] = []
    for one in keys.rows("exclude"):
        if not isinstance(one, str):
            raise OptionError("parts of a graph between two nodes are not left out by a recipe")
        exclude.append(one)
    bfloat: list[str] = []
    for key, prefix in (("layer_type_config", ":"), ("specific_layer_config", "")):
        for row in keys.rows(key):
            is_pair = isinstance(row, list) and len(row) == 2 and isinstance(row[1], list)
            if not is_pair or not all(isinstance(name, str) for name in row[1]):
                raise keys.error(key, row, "pairs of a configuration, or null, and names")
            own, names = row
            patterns = [f"{prefix}{name}" for name in names]
            if own is None:
                exclude += patterns
                continue
            layer = Keys(own, keys.notes, key)
            kind = layer.inner("input_tensors").word("data_type")
            if kind == "BFloat16":
                bfloat += patterns
            else:
                keys.notes.append(f"`{', '.join(names)}` get no {kind} of their own")
    if exclude:
        settings["exclude"] = exclude
    if bfloat:
        settings["bfloat"] = bfloat


def _algorithms(keys: Keys, settings: Found) -> None:
    for row in keys.rows("algo_config"):
        one = Keys(row, keys.notes, "algo_config")
        name = one.word("name")
        if name == "cle":
            settings["equalize"] = True
        elif name == "bias_correction":
            settings["correct_bias"] = True
        elif name == "smooth_quant":
            settings["migrate"] = True
            if one.number("alpha", 0.5) != 0.5:
                keys.notes.append("outlying channels are moved as far as `--migrate` does it")
        elif name in {"gptq", "adaround", "adaquant"}:
            _round_carefully(settings, keys.notes)
        else:
            keys.notes.append(f"`{name}` is not done")
            continue
        one.finish()
