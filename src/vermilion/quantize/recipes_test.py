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
    with pytest.raises(OptionError, match="front of 2 points"):
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
    ("kind", "scheme"),
    [("UInt8", "a8w8"), ("Int16", "a16w8"), ("BFP16", "bfp16"), ("MXFP4E2M1", "mxfp4")],
)
def test_types_of_the_new_form(kind: str, scheme: str, tmp_path: Path) -> None:
    assert options(read(tmp_path, new_form({**TENSOR, "data_type": kind}))).scheme == scheme


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
        ({"global_config": 3}, "of another kind"),
        (3, "not a JSON object"),
    ],
)
def test_what_is_not_done_is_an_error(content: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=words):
        read(tmp_path, content)
