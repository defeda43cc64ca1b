"""Recipes of other tools mean the same here, or say what they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from vermilion.errors import OptionError
from vermilion.quantize.formats import SCHEMES
from vermilion.quantize.options import Options, from_json
from vermilion.quantize.quark_recipes import _NEW_PRESETS, _PRESETS
from vermilion.quantize.recipes import Recipe, read_recipe

TENSOR = {
    "symmetric": True, "scale_type": "ScaleType.Float32",
    "calibration_method": "CalibMethod.Percentile", "quant_granularity": "QuantGranularity.Tensor",
    "data_type": "Int8",
}  # fmt: skip
POWER = {
    **TENSOR,
    "scale_type": "ScaleType.PowerOf2",
    "calibration_method": "CalibMethod.MinMSE",
}
BF16 = {**TENSOR, "data_type": "BFloat16", "calibration_method": "CalibMethod.MinMax"}


def new_form(tensor: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"global_config": {"input_tensors": tensor, "weight": tensor}, **more}


def read(folder: Path, content: Any, point: int | None = None) -> Recipe:
    (folder / "r.json").write_text(json.dumps(content), encoding="utf-8")
    return read_recipe(folder / "r.json", point)


def options(recipe: Recipe) -> Options:
    return from_json(recipe.settings)


def test_our_own_comes_back(tmp_path: Path) -> None:
    own = Options(scheme="a8w8", wide=("a",), bfloat=("b",), middle=True)
    assert options(read(tmp_path, own.as_json())) == own


def test_a_point_of_a_front(tmp_path: Path) -> None:
    front = {"points": [{"recipe": {"scheme": "a8w8"}}, {"recipe": {"scheme": "a16w8"}}]}
    assert options(read(tmp_path, front, 1)).scheme == "a16w8"
    with pytest.raises(OptionError, match="Pareto front of 2 points"):
        read(tmp_path, front)
    with pytest.raises(OptionError, match="no point 2"):
        read(tmp_path, front, 2)
    with pytest.raises(OptionError, match="the recipe is none"):
        read(tmp_path, {"scheme": "a8w8"}, 0)


@pytest.mark.parametrize("name", [*_PRESETS, *_NEW_PRESETS, "A8W8_ADAROUND", "xint8_adaquant"])
def test_presets_of_quark(name: str, tmp_path: Path) -> None:
    found = read(tmp_path, {"config_template": name})
    assert options(found).scheme in SCHEMES
    if "ADA" in name.upper():
        assert options(found).rounding == "compensated"
        assert any("AdaRound" in note for note in found.notes)


def test_the_two_forms_of_xint8_differ(tmp_path: Path) -> None:
    legacy = options(read(tmp_path, {"config_template": "XINT8"}))
    assert (legacy.scheme, legacy.middle, legacy.equalize, legacy.dpu) == (
        "xint8",
        True,
        True,
        True,
    )
    new = options(read(tmp_path, new_form(POWER)))
    assert (new.scheme, new.middle, new.equalize, new.dpu) == ("xint8", False, False, True)
    vint8 = options(read(tmp_path, new_form(POWER, extra_options={"EnableNPUCnn": False})))
    assert not vint8.dpu


def test_the_new_form(tmp_path: Path) -> None:
    config = new_form(
        TENSOR,
        exclude=["head"],
        layer_type_config=[[None, ["Softmax"]], [{"input_tensors": BF16}, ["Gemm"]]],
        specific_layer_config=[[{"input_tensors": {**TENSOR, "data_type": "Int16"}}, ["c"]]],
        algo_config=[
            {"name": "cle"},
            {"name": "adaround", "num_iterations": 9},
            {"name": "quarot"},
        ],
        extra_options={"Percentile": 99.9, "AlignConcat": True, "Unheard": 3},
    )
    found = read(tmp_path, config)
    made = options(found)
    assert (made.scheme, made.method, made.symmetric) == ("a8w8", "percentile", True)
    assert made.exclude == ("head", ":Softmax")
    assert made.bfloat == (":Gemm",)
    assert made.equalize
    assert made.rounding == "compensated"
    words = " ".join(found.notes)
    for word in ("99.9", "Unheard", "quarot", "Int16", "AdaRound"):
        assert word in words
    assert "AlignConcat" not in words


@pytest.mark.parametrize(
    ("kind", "weight", "scheme"),
    [
        ("UInt8", "UInt8", "a8w8"), ("Int16", "Int8", "a16w8"), ("BFP16", "BFP16", "bfp16"),
        ("MXFP4E2M1", "MXFP4E2M1", "mxfp4"),
    ],
)  # fmt: skip
def test_types_of_the_new_form(kind: str, weight: str, scheme: str, tmp_path: Path) -> None:
    tensors = {"input_tensors": {**TENSOR, "data_type": kind}}
    tensors["weight"] = {**TENSOR, "data_type": weight}
    assert options(read(tmp_path, {"global_config": tensors})).scheme == scheme


def test_the_old_form(tmp_path: Path) -> None:
    config = {
        "calibrate_method": "MinMSE", "activation_type": "QUInt8", "weight_type": "QInt8",
        "enable_npu_cnn": True, "include_cle": False, "nodes_to_exclude": ["a", "b"],
        "extra_options": {"ActivationSymmetric": True},
    }  # fmt: skip
    made = options(read(tmp_path, {"quant_config": config}))
    assert (made.scheme, made.middle, made.dpu, made.equalize) == ("xint8", True, True, False)
    assert made.exclude == ("a", "b")
    only = {"activation_type": "QInt8", "op_types_to_quantize": ["Conv", "MatMul"]}
    assert options(read(tmp_path, only)).exclude == (":!Conv,MatMul",)
    with pytest.raises(OptionError, match="nodes_to_quantize"):
        read(tmp_path, {"activation_type": "QInt8", "nodes_to_quantize": ["a"]})


STATIC = {"type": "OnnxStaticQuantization"}
BLOCKS = {"type": "OnnxBlockWiseRtnQuantization"}
NBITS = {"config_template": "MATMUL_NBITS"}

# All fields of a `QuantizationConfig` of Quark, as they are where nobody says anything.
WHOLE = {
    "calibrate_method": "PowerOfTwoMethod.MinMSE", "quant_format": "QuantFormat.QDQ",
    "activation_type": "QuantType.QInt8", "weight_type": "QuantType.QInt8", "input_nodes": [],
    "output_nodes": [], "op_types_to_quantize": [], "nodes_to_quantize": [],
    "extra_op_types_to_quantize": [], "nodes_to_exclude": [], "subgraphs_to_exclude": [],
    "specific_tensor_precision": False, "execution_providers": ["CPUExecutionProvider"],
    "per_channel": False, "reduce_range": False, "optimize_model": True,
    "use_dynamic_quant": False, "use_external_data_format": False, "convert_fp16_to_fp32": False,
    "convert_nchw_to_nhwc": False, "include_sq": False, "include_rotation": False,
    "include_cle": True, "include_auto_mp": False, "include_fast_ft": False,
    "enable_npu_cnn": True, "enable_npu_transformer": False, "debug_mode": False,
    "crypto_mode": False, "print_summary": True, "ignore_warnings": True, "log_severity_level": 1,
    "extra_options": {"ActivationSymmetric": True, "ForceQuantizeNoInputCheck": True,
                      "WeightSymmetric": True, "Int32Bias": False, "QuantizeBias": True},
}  # fmt: skip


def test_a_whole_configuration_says_nothing_that_is_not_done(tmp_path: Path) -> None:
    assert read(tmp_path, {"quant_config": WHOLE}).notes == ()
    assert read(tmp_path, new_form(TENSOR, use_external_data_format=False)).notes == ()


# Where a key that nobody knows stands, and the words that name it.
UNKNOWN = [
    ({"quant_config": WHOLE, "Unheard": 1}, "`Unheard`"),
    ({"quant_config": {**WHOLE, "Unheard": False}}, "`quant_config.Unheard`"),
    ({"config_template": "A8W8", "per_chanel": True}, "is `per_channel` meant"),
    ({"config_template": "A8W8", "extra_options": {"Unheard": 0}}, "`extra_options.Unheard`"),
    ({"config_template": "A8W8", "extra_options": {"FoldRelu": False}}, "`extra_options.FoldRelu`"),
    ({"config_template": "A8W8", "quant_format": "QOperator"}, "`quant_format`"),
    ({"config_template": "A8W8", "activation_type": "QUInt8"}, "`activation_type`"),
    ({"config_template": "A8W8", "reduce_range": True}, "`reduce_range`"),
    ({"config_template": "A8W8", "include_rotation": True}, "`include_rotation`"),
    ({"config_template": "A8W8", "extra_options": {"Int32Bias": False}}, "`Int32Bias`"),
    ({**NBITS, "extra_options": {"MatMulNBitsParams": {"Unheard": 1}}}, "NBitsParams.Unheard`"),
    (new_form({**TENSOR, "unheard": 1}), "`global_config.input_tensors.unheard`"),
    (new_form(TENSOR, unheard=1), "`unheard`"),
    (new_form({**TENSOR, "quant_granularity": "QuantGranularity.Group"}), "a scale a tensor"),
    (new_form(TENSOR, algo_config=[{"name": "cle", "unheard": 1}]), "`algo_config.unheard`"),
    (new_form(TENSOR, algo_config=[{"name": "gptq", "bits": 3}]), "`algo_config.bits`"),
    ({"global_config": {"input_tensors": TENSOR, "weight": TENSOR, "bias": TENSOR}},
     "`global_config.bias`"),
    ({**STATIC, "unheard": 1}, "`unheard`"),
    ({**STATIC, "extra_options": {"CalibMovingAverage": True}}, "CalibMovingAverage`"),
    ({**STATIC, "MatMulConstBOnly": True}, "`extra_options.MatMulConstBOnly`"),
    ({"type": "OnnxDynamicQuantization", "unheard": 1}, "`unheard`"),
    ({"type": "OnnxFloatToFloat16", "unheard": 1}, "`unheard`"),
    ({"type": "OnnxFloatToFloat16"}, "inputs and outputs keep"),
    ({**BLOCKS, "accuracy_level": 4}, "`accuracy_level`"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "words"), UNKNOWN)
def test_what_is_not_read_is_told(content: Any, words: str, tmp_path: Path) -> None:
    notes = read(tmp_path, content).notes
    assert len([note for note in notes if words in note]) == 1, notes


FLAGS = [
    *({"config_template": "A8W8", n: "false"} for n in (
        "per_channel", "include_cle", "enable_npu_cnn", "include_sq", "include_fast_ft",
        "include_auto_mp", "use_dynamic_quant", "reduce_range", "include_rotation")),
    *({"config_template": "A8W8", "extra_options": {n: "false"}} for n in (
        "ActivationSymmetric", "WeightSymmetric", "Int32Bias", "FoldRelu", "SmoothQuant",
        "ForceQuantizeNoInputCheck")),
    {"activation_type": "QInt8", "extra_options": {"ActivationSymmetric": 0}},
    {**NBITS, "extra_options": {"MatMulNBitsParams": {"Symmetric": "false"}}},
    new_form({**TENSOR, "symmetric": "false"}),
    new_form(POWER, extra_options={"EnableNPUCnn": "false"}),
    {**STATIC, "per_channel": "false"},
    {**STATIC, "ActivationSymmetric": "false"},
    {"type": "VitisAIQuantization", "enable_dpu": "false"},
    {"type": "OnnxDynamicQuantization", "per_channel": "false"},
    {**BLOCKS, "is_symmetric": "false"},
    {"type": "OnnxFloatToFloat16", "keep_io_types": "false"},
]  # fmt: skip


@pytest.mark.parametrize("content", FLAGS)
def test_true_and_false_are_no_text(content: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"is ('false'|0) \(.*r\.json") as caught:
        read(tmp_path, content)
    assert caught.value.hint == "it takes true or false"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("nodes_to_quantize", ["a"]), ("input_nodes", ["a"]), ("output_nodes", ["a"]),
        ("subgraphs_to_exclude", [["a"], ["b"]]), ("convert_nchw_to_nhwc", True),
        ("extra_options", {"WeightsOnly": True}),
    ],
)  # fmt: skip
def test_what_would_give_another_model(name: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="is not done by a recipe"):
        read(tmp_path, {"config_template": "A8W8", name: value})


@pytest.mark.parametrize("text", ["[" * 100_000, '{"points": ' * 100_000, "", '{"scheme": 1e'])
def test_files_that_are_no_json(text: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text, encoding="utf-8")
    with pytest.raises(OptionError, match="this is no JSON"):
        read_recipe(tmp_path / "r.json")


def test_nodes_left_out_by_olive(tmp_path: Path) -> None:
    dynamic = {"type": "OnnxDynamicQuantization", "nodes_to_exclude": ["a"]}
    dynamic |= {"op_types_to_exclude": ["Gemm", "Conv"]}
    assert options(read(tmp_path, dynamic)).exclude == ("a", ":Gemm,Conv")
    half = {"type": "OnnxFloatToFloat16", "op_block_list": ["Softmax"], "node_block_list": ["n"]}
    assert options(read(tmp_path, half)).exclude == ("n", ":Softmax")


OLIVE = {
    "static": (
        {"type": "OnnxStaticQuantization", "precision": "int8", "activation_type": "uint16"},
        {"scheme": "a16w8", "equalize": False},
    ),
    "old": (
        {"type": "OnnxQuantization", "config": {"weight_type": "QInt8", "activation_type": "QUInt8",
                                                "per_channel": True, "ActivationSymmetric": False}},
        {"scheme": "a8w8", "per_channel": True, "symmetric": False},
    ),
    "dynamic": ({"type": "OnnxDynamicQuantization"}, {"scheme": "int8-dynamic"}),
    "quark": (
        {"type": "QuarkQuantization", "config_template": "A8W8", "per_channel": True},
        {"scheme": "a8w8", "per_channel": True, "symmetric": True},
    ),
    "vitis": ({"type": "VitisAIQuantization"}, {"scheme": "xint8", "middle": True}),
    "half": ({"type": "OnnxFloatToFloat16"}, {"scheme": "fp16"}),
    "blocks": (
        {"type": "OnnxBlockWiseRtnQuantization", "block_size": 32},
        {"scheme": "int4", "block": 32, "rounding": "nearest"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OLIVE)
def test_passes_of_olive(name: str, tmp_path: Path) -> None:
    one, wanted = OLIVE[name]
    whole = {"input_model": {"path": "m"}, "passes": {"c": {"type": "OnnxConversion"}, "q": one}}
    found = read(tmp_path, whole)
    made = options(found).as_json()
    assert {key: made[key] for key in wanted} == wanted
    assert "the pass `OnnxConversion` is not done" in found.notes
    assert options(read(tmp_path, one)) == options(found)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"config_template": "INT16_CNN_DEFAULT"}, "not done here"),
        ({"passes": {}}, "0 passes"),
        ({"schema": 1}, "no `schema`"),
        ({"activation_type": "QFloat8"}, "not made"),
        ({"global_config": 3}, "`global_config` is 3"),
        (3, "holds no object"),
        ({"points": 3}, "`points` is 3"),
        ({"passes": 3}, "`passes` is 3"),
        ({"passes": [3]}, "no object"),
        ({"type": {"a": 1}}, "no `type`"),
        ({**STATIC, "config": 3}, "`config` is 3"),
        ({"quant_config": 3}, "`quant_config` is 3"),
        (new_form(TENSOR, layer_type_config=[[None]]), "`layer_type_config` is"),
        (new_form(TENSOR, algo_config=["cle"]), "`algo_config` is 'cle'"),
        ({"global_config": {"input_tensors": TENSOR, "weight": BF16}}, "type `bfloat16` are not"),
        ({"global_config": {"input_tensors": BF16, "weight": TENSOR}}, "weights are `Int8` and"),
        ({"config_template": "MATMUL_NBITS", "extra_options": {"MatMulNBitsParams": {"Bits": 8}}},
         "weights of 8 bits"),
        ({"config_template": "XINT8", "extra_options": {"Percentile": "99"}}, "`extra_options.Per"),
        ({"config_template": "A8W8", "nodes_to_exclude": "head"}, "`nodes_to_exclude` is 'head'"),
    ],
)  # fmt: skip
def test_what_is_not_done_is_an_error(content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        read(tmp_path, content)
