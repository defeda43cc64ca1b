"""The network that `vermilion hello` takes through the whole path.

Four 3x3 convolutions with ReLU, 3→32→64→128→256 channels on an image of 224x224, and a final
addition of 1: the network of AMD's own hello-world example for the Ryzen AI NPU. The same
numbers can be had as a graph, without PyTorch, and as a PyTorch module to export.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from vermilion.errors import DeviceError

if TYPE_CHECKING:
    import torch

CHANNELS = (3, 32, 64, 128, 256)
INPUT_SHAPE = (1, 3, 224, 224)
OUTPUT_SHAPE = (1, 256, 224, 224)

_OPSET = 17  # what the Ryzen AI documentation recommends
_IR_VERSION = 8  # the one of ONNX 1.12, the first with opset 17
_SEED = 1

Float32Array = NDArray[np.float32]


def hello_network() -> ir.Model:
    """Build the network as a graph."""
    image = ir.val("input", dtype=ir.DataType.FLOAT, shape=ir.Shape(INPUT_SHAPE))
    weights = {name: _initializer(name, array) for name, array in hello_weights().items()}
    one = _initializer("one", np.array(1.0, np.float32))
    nodes: list[ir.Node] = []
    last = image
    for index in range(1, len(CHANNELS)):
        last = _append(
            nodes,
            "Conv",
            f"conv{index}",
            [last, weights[f"conv{index}.weight"], weights[f"conv{index}.bias"]],
            {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [1, 1]},
            CHANNELS[index],
        )
        last = _append(nodes, "Relu", f"relu{index}", [last], {}, CHANNELS[index])
    last = _append(nodes, "Add", "add", [last, one], {}, CHANNELS[-1])
    last.name = "output"
    graph = ir.Graph(
        [image],
        [last],
        nodes=nodes,
        initializers=[*weights.values(), one],
        opset_imports={"": _OPSET},
        name="hello",
    )
    return ir.Model(graph, ir_version=_IR_VERSION, producer_name="vermilion")


def hello_torch_module() -> torch.nn.Module:
    """Build the network as a PyTorch module with the same weights.

    Raises: DeviceError where PyTorch is not installed.
    """
    try:
        import torch
    except ImportError as error:
        raise DeviceError(
            "PyTorch is not installed", hint="pip install 'vermilion[export]'"
        ) from error
    layers: list[torch.nn.Module] = []
    for c_in, c_out in pairwise(CHANNELS):
        layers += [torch.nn.Conv2d(c_in, c_out, kernel_size=3, padding=1), torch.nn.ReLU()]
    weights = iter(hello_weights().values())
    with torch.no_grad():
        for layer in layers[::2]:
            layer.weight.copy_(torch.from_numpy(next(weights)))
            layer.bias.copy_(torch.from_numpy(next(weights)))

    class AddOne(torch.nn.Module):  # type: ignore[misc]
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.add(x, 1)

    return torch.nn.Sequential(*layers, AddOne()).eval()


def hello_weights() -> dict[str, Float32Array]:
    """Return weight and bias of each convolution in order, the same ones each time.

    Weights are normal with variance 2 ÷ fan-in, which keeps the scale of what passes a ReLU.
    Source: He et al. 2015, "Delving Deep into Rectifiers", equation 10.
    """
    random = np.random.default_rng(_SEED)
    weights: dict[str, Float32Array] = {}
    for index, (c_in, c_out) in enumerate(pairwise(CHANNELS), start=1):
        scale = np.float32(np.sqrt(2.0 / (c_in * 9)))
        kernel = random.standard_normal((c_out, c_in, 3, 3), dtype=np.float32)
        weights[f"conv{index}.weight"] = kernel * scale
        weights[f"conv{index}.bias"] = random.uniform(-0.1, 0.1, c_out).astype(np.float32)
    return weights


def _initializer(name: str, array: NDArray[np.float32]) -> ir.Value:
    tensor = ir.Tensor(array, name=name)
    return ir.val(name, const_value=tensor, dtype=tensor.dtype, shape=tensor.shape)


def _append(
    nodes: list[ir.Node],
    op_type: str,
    name: str,
    inputs: list[ir.Value],
    attributes: dict[str, list[int]],
    channels: int,
) -> ir.Value:
    node = ir.node(op_type, inputs, attributes, name=name)
    output = node.outputs[0]
    output.name = f"{name}_output"
    output.type = ir.TensorType(ir.DataType.FLOAT)
    output.shape = ir.Shape([1, channels, *INPUT_SHAPE[2:]])
    nodes.append(node)
    return output
