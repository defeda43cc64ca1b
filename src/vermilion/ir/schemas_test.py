"""Tests of the door's check of nodes against the definitions of their operators."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

from vermilion.errors import ModelError
from vermilion.ir.load import load_model

X, Y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in "xy")


def saved(node: onnx.NodeProto, folder: Path, opset: int = 20) -> Path:
    domains = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "g", [X], [Y])
    path = folder / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=domains, ir_version=9), path)
    return path


@pytest.mark.parametrize("operator", ["Min", "Max", "Sum", "Mean", "Concat"])
@pytest.mark.parametrize("inputs", [["x", ""], ["", "x"], ["x", "", "x"], [""]])
def test_of_several_inputs_none_may_be_left_out(
    operator: str, inputs: list[str], tmp_path: Path
) -> None:
    axis = {"axis": 0} if operator == "Concat" else {}
    path = saved(helper.make_node(operator, inputs, ["y"], **axis), tmp_path)
    with pytest.raises(ModelError, match=r"number \d is missing") as caught:
        load_model(path)
    assert operator in caught.value.where
    assert caught.value.hint


def test_compile_says_so_and_ends_in_order(tmp_path: Path) -> None:
    path = saved(helper.make_node("Max", ["x", ""], ["y"]), tmp_path)
    command = [sys.executable, "-m", "vermilion", "compile", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "number 2 is missing" in done.stderr


@pytest.mark.parametrize(
    ("node", "words"),
    [
        (helper.make_node("Add", ["x"], ["y"]), "takes 2"),
        (helper.make_node("Relu", ["x", "x"], ["y"]), "takes 1"),
        (helper.make_node("Gemm", ["x", ""], ["y"]), "`B` is missing"),
        (helper.make_node("DepthToSpace", ["x"], ["y"], blocksize=0), "`blocksize` is 0"),
        (helper.make_node("SpaceToDepth", ["x"], ["y"], blocksize=-2), "`blocksize` is -2"),
        (helper.make_node("Conv", ["x", "x"], ["y"], group=0), "`group` is 0"),
        (helper.make_node("Conv", ["x", "x"], ["y"], strides=[1, 0]), "`strides` is "),
        (helper.make_node("Conv", ["x", "x"], ["y"], dilations=[-1, 1]), "`dilations` is "),
        (helper.make_node("MaxPool", ["x"], ["y"], kernel_shape=[2**40, 1]), "`kernel_shape` is "),
        (helper.make_node("Split", ["x"], ["y"], num_outputs=0), "`num_outputs` is 0"),
        (
            helper.make_node("Split", ["x"], ["y", "z"], num_outputs=2**31 - 1),
            "`num_outputs` is 2147483647, and it has 2 outputs",
        ),
        (helper.make_node("LRN", ["x"], ["y"], size=0), "`size` is 0"),
        (helper.make_node("Softmax", ["x"], ["y"], axis="1"), "`axis` is STRING"),
        (helper.make_node("Concat", ["x"], ["y"]), "`axis` is missing"),
        (
            helper.make_node("Relu", ["x"], ["y"], body=helper.make_graph([], "b", [], [])),
            "`body` holds a graph",
        ),
        (helper.make_node("Gelu", [], ["y"], domain="com.microsoft"), "takes 1"),
        (
            helper.make_node("MatMulNBits", ["x", "x", ""], ["y"], domain="com.microsoft"),
            "`scales` is missing",
        ),
    ],
)
def test_what_an_operator_does_not_allow_is_refused(
    node: onnx.NodeProto, words: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=words) as caught:
        load_model(saved(node, tmp_path))
    assert node.op_type in caught.value.where
    assert caught.value.hint


def test_an_attribute_stands_once(tmp_path: Path) -> None:
    node = helper.make_node("Softmax", ["x"], ["y"], axis=1)
    node.attribute.append(helper.make_attribute("axis", 0))
    with pytest.raises(ModelError, match="attribute `axis` stands twice") as caught:
        load_model(saved(node, tmp_path))
    assert "Softmax" in caught.value.where
