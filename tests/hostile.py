"""What a hostile input is, and the small tools that its builders share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx

# Arguments of the command line; `{in}` is the case's folder of inputs, `{out}` that of results.
Build = Callable[[Path], Sequence[str]]

COMPILE = ("compile", "{in}/m.onnx", "--cache-dir", "{out}/cache", "-o", "{out}/m.rai")
RUN = ("run", "{in}/m.rai", "-o", "{out}/y.npz")


@dataclass(frozen=True)
class Hostile:
    """An input, the exit code it must give, and what the error must say (a pattern)."""

    name: str
    build: Build
    says: str
    exit_code: int = 1


def file_case(
    name: str,
    data: bytes | Callable[[], bytes],
    says: str,
    *,
    exit_code: int = 1,
    file_name: str = "m.onnx",
) -> Hostile:
    """Return a case in which these bytes are what a model is expected in."""

    def build(folder: Path) -> Sequence[str]:
        (folder / file_name).write_bytes(data if isinstance(data, bytes) else data())
        return [word.replace("m.onnx", file_name) for word in COMPILE]

    return Hostile(name, build, says, exit_code)


def model_case(
    name: str,
    model: onnx.ModelProto | Callable[[], onnx.ModelProto],
    says: str,
    *,
    exit_code: int = 1,
    words: Sequence[str] = COMPILE,
) -> Hostile:
    """Return a case that is a model."""

    def build(folder: Path) -> Sequence[str]:
        made = model if isinstance(model, onnx.ModelProto) else model()
        (folder / "m.onnx").write_bytes(made.SerializeToString())
        return words

    return Hostile(name, build, says, exit_code)


def text_model(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    """Return a model from ONNX text: a graph, or header and graph."""
    if not text.lstrip().startswith("<"):
        text = f'<ir_version: 8, opset_import: ["" : 17]>\n{text}'
    model = onnx.parser.parse_model(text)
    for name, array in weights.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def sound_model() -> onnx.ModelProto:
    """Return a model with nothing wrong in it: one Conv and a Relu."""
    return text_model(
        """net (float[1, 3, 8, 8] x) => (float[1, 4, 6, 6] y) {
          [c] h = Conv (x, w)
          [r] y = Relu (h)
        }""",
        w=np.ones((4, 3, 3, 3), np.float32),
    )


def varint(number: int) -> bytes:
    """Return a number as protobuf writes it."""
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def field(number: int, payload: bytes) -> bytes:
    """Return a protobuf field that holds bytes, text or a message."""
    return varint(number << 3 | 2) + varint(len(payload)) + payload
