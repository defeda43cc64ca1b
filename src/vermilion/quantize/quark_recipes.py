"""What AMD Quark's configurations mean in our options: presets, both forms of configurations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vermilion.errors import OptionError
from vermilion.quantize.formats import SCHEMES

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

# Change nothing here: how it runs, what it prints, and what is always done.
_SILENT = frozenset(
    {
        *("input_nodes", "output_nodes", "execution_providers", "optimize_model"),
        *("use_external_data_format", "convert_fp16_to_fp32", "debug_mode", "crypto_mode"),
        *("print_summary", "ignore_warnings", "log_severity_level", "quant_format"),
        *("enable_npu_transformer", "include_rotation", "specific_tensor_precision"),
        *("extra_op_types_to_quantize", "ForceQuantizeNoInputCheck", "AlignSlice", "FoldRelu"),
        *("AlignConcat", "AlignEltwiseQuantType", "UseRandomData", "QuantizeAllOpTypes"),
        *("DedicatedQDQPair", "DedicateDQNode", "Int32Bias", "CalibDataSize", "EnableNPUCnn"),
        *("QuantizeBias", "AddQDQPairToWeight", "TmpDir", "NumWorkers", "OptimizeModel"),
        *("CLESteps", "CLEScaleAppendBias", "EnableNPUTransformer", "MinMSEModePof2Scale"),
    }
)


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


def legacy_settings(config: Mapping[str, Any], notes: list[str]) -> Found:
    """Return what a `QuantizationConfig` asks for: a template, and what goes before it."""
    template = config.get("config_template")
    keys = {n: v for n, v in config.items() if v is not None and n != "config_template"}
    extra = keys.pop("extra_options", {})
    settings = preset_settings(str(template), notes) if template else _types(keys, extra, notes)
    method = keys.pop("calibrate_method", None)
    if template and method is not None and settings["scheme"] in {"a8w8", "a16w8"}:
        settings["method"] = _method(str(method), notes)
    if keys.pop("use_dynamic_quant", False):
        settings = preset_settings("UINT8_DYNAMIC_QUANT", notes)
    for name in ("activation_type", "weight_type"):
        keys.pop(name, None)
    if "per_channel" in keys:
        settings["per_channel"] = bool(keys.pop("per_channel"))
    if "include_cle" in keys:
        settings["equalize"] = bool(keys.pop("include_cle"))
    if "enable_npu_cnn" in keys:
        settings["dpu"] = bool(keys.pop("enable_npu_cnn")) and settings["scheme"] == "xint8"
    if keys.pop("include_sq", False):
        settings["migrate"] = True
    if keys.pop("include_fast_ft", False) or "FastFinetune" in extra:
        _round_carefully(settings, notes)
    if keys.pop("include_auto_mp", False):
        notes.append("precision is not mixed by itself; `--min-sqnr` or `--pareto` does it")
    _exclusions(settings, keys)
    _extra(settings, extra, notes)
    _left(keys, notes)
    return settings


def _types(keys: Mapping[str, Any], extra: Mapping[str, Any], notes: list[str]) -> Found:
    """Choose the scheme of plain types and a method."""
    activation = _plain(keys.get("activation_type", "QInt8"))
    weight = _plain(keys.get("weight_type", "QInt8"))
    method = str(keys.get("calibrate_method", "MinMax")).rpartition(".")[2].lower()
    floats = {"bfloat16": "bf16", "float16": "fp16", "bfp": "bfp16"}
    if activation in floats:
        return {"scheme": floats[activation]}
    if weight not in {"int8", "uint8"}:
        raise OptionError(f"weights of the type `{weight}` are not made", hint="int8 ones are")
    if weight == "uint8":
        notes.append("weights are int8 instead of uint8")
    symmetric = bool(extra.get("ActivationSymmetric", False))
    if method in _POWERS:
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


def _plain(kind: Any) -> str:
    """Return `int8` of `QInt8`, `QuantType.QInt8` or `int8`."""
    word = str(kind).rpartition(".")[2]
    return (word[1:] if word[:1] == "Q" else word).lower()


def _method(word: str, notes: list[str]) -> str:
    plain = word.rpartition(".")[2].lower()
    if plain not in _METHODS:
        notes.append(f"ranges are chosen by percentile instead of `{word}`")
        return "percentile"
    return _METHODS[plain]


def _exclusions(settings: Found, keys: Found) -> None:
    left_out = list(keys.pop("nodes_to_exclude", ()) or ())
    only = list(keys.pop("op_types_to_quantize", ()) or ())
    if only:
        left_out.append(f":!{','.join(only)}")
    for name in ("nodes_to_quantize", "subgraphs_to_exclude"):
        if keys.pop(name, ()):
            raise OptionError(
                f"`{name}` is not read here", hint="name what is left out in `nodes_to_exclude`"
            )
    if left_out:
        settings["exclude"] = left_out


def _extra(settings: Found, extra: Mapping[str, Any], notes: list[str]) -> None:
    if "ActivationSymmetric" in extra and settings["scheme"] == "a8w8":
        settings["symmetric"] = bool(extra["ActivationSymmetric"])
    if extra.get("WeightSymmetric") is False:
        notes.append("weights keep zero points of zero")
    if float(extra.get("Percentile", 99.999)) != 99.999:
        notes.append(f"the percentile is 99.999 instead of {extra['Percentile']}")
    blocks = extra.get("MatMulNBitsParams", {})
    if blocks:
        symmetric = bool(blocks.get("Symmetric", True))
        settings |= {"scheme": "int4" if symmetric else "uint4"}
        settings["block"] = int(blocks.get("GroupSize", 128))
    read = {"ActivationSymmetric", "WeightSymmetric", "Percentile", "MatMulNBitsParams"}
    _left({n: v for n, v in extra.items() if n not in read | {"FastFinetune"}}, notes)


def _left(keys: Mapping[str, Any], notes: list[str]) -> None:
    for name, value in keys.items():
        if name not in _SILENT and value not in (False, None, [], {}):
            notes.append(f"`{name}` is not read")


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


def spec_settings(config: Mapping[str, Any], notes: list[str]) -> Found:
    """Return what a `QConfig` asks for, as `to_dict` writes it."""
    whole = config["global_config"]
    activation = whole.get("input_tensors") or whole.get("activation") or {}
    weight = whole.get("weight") or {}
    kind = str(activation.get("data_type", "Int8"))
    settings = dict(_TYPES.get(kind, {"scheme": _SIMPLE.get(kind.upper(), "")}))
    if settings["scheme"] not in SCHEMES:
        raise OptionError(f"tensors of the type `{kind}` are not made here")
    scheme = SCHEMES[settings["scheme"]].name
    is_power = str(activation.get("scale_type", "")).endswith("PowerOf2")
    if is_power and scheme == "a8w8":
        settings = {**_NEW_PRESETS["XINT8_QCONFIG"], "middle": kind == "UInt8"}
        settings["dpu"] = config.get("extra_options", {}).get("EnableNPUCnn", True) is not False
    elif scheme in {"a8w8", "a16w8"}:
        settings["method"] = _method(str(activation.get("calibration_method", "MinMax")), notes)
        symmetric = bool(activation.get("symmetric", kind == "Int8"))
        if scheme == "a8w8":
            settings |= {"symmetric": symmetric, "middle": symmetric and kind == "UInt8"}
    if str(weight.get("quant_granularity", "")).endswith("Channel"):
        settings["per_channel"] = True
    _layers(config, settings, notes)
    _algorithms(config.get("algo_config", ()), settings, notes)
    _extra(settings, config.get("extra_options", {}), notes)
    known = {"global_config", "layer_type_config", "specific_layer_config", "exclude"}
    _left(
        {n: v for n, v in config.items() if n not in known | {"algo_config", "extra_options"}},
        notes,
    )
    return settings


def _layers(config: Mapping[str, Any], settings: Found, notes: list[str]) -> None:
    """Read which nodes are left out, and which get a format of their own."""
    exclude: list[str] = []
    for one in config.get("exclude", ()):
        if not isinstance(one, str):
            raise OptionError("parts of a graph between two nodes are not left out by a recipe")
        exclude.append(one)
    bfloat: list[str] = []
    for key, prefix in (("layer_type_config", ":"), ("specific_layer_config", "")):
        for own, names in config.get(key, ()):
            patterns = [f"{prefix}{name}" for name in names]
            kind = None if own is None else (own.get("input_tensors") or {}).get("data_type")
            if own is None:
                exclude += patterns
            elif kind == "BFloat16":
                bfloat += patterns
            else:
                notes.append(f"`{', '.join(names)}` get no {kind} of their own")
    if exclude:
        settings["exclude"] = exclude
    if bfloat:
        settings["bfloat"] = bfloat


def _algorithms(rows: Sequence[Mapping[str, Any]], settings: Found, notes: list[str]) -> None:
    for row in rows:
        name = str(row.get("name"))
        if name == "cle":
            settings["equalize"] = True
        elif name == "bias_correction":
            settings["correct_bias"] = True
        elif name == "smooth_quant":
            settings["migrate"] = True
        elif name in {"gptq", "adaround", "adaquant"}:
            _round_carefully(settings, notes)
        else:
            notes.append(f"`{name}` is not done")
