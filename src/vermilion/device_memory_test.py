"""Memory that a model needs: counted by hand on a small graph, and for a decoder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from vermilion.device_memory import RUNTIME_BYTES, WORKSPACE_BYTES, estimate_memory
from vermilion.errors import OptionError
from vermilion.llm.device_memory import estimate_decoder


def chain(batch: str | int = "n") -> onnx.ModelProto:
    """Return x(n,64) · w(64,256) → Relu → · v(256,16)."""
    values = {"w": (64, 256), "v": (256, 16)}
    weights = [numpy_helper.from_array(np.ones(s, np.float32), k) for k, s in values.items()]
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("MatMul", ["b", "v"], ["y"]),
        ],
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [batch, 64])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [batch, 16])],
        weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_every_term_is_counted() -> None:
    one, eight = estimate_memory(chain(), batches=(1, 8))
    assert one.weights == eight.weights == (64 * 256 + 256 * 16) * 4
    # `a` and `b` are alive together; then `b` and `y`. All: x, a, b, y.
    assert one.activations == ((256 + 256) * 4, (64 + 256 + 256 + 16) * 4)
    assert eight.activations == tuple(8 * size for size in one.activations)
    assert one.total[0] == one.weights + WORKSPACE_BYTES + one.activations[0] + RUNTIME_BYTES[0]
    (half,) = estimate_memory(chain(), precision="fp16", gpu="gfx942")
    assert (half.weights, half.workspace) == (one.weights // 2, 4 * WORKSPACE_BYTES)


def test_a_fixed_batch_counts_as_it_is_and_open_sizes_are_refused() -> None:
    (four,) = estimate_memory(chain(4), batches=(1, 8))
    assert four.batch == 4
    model = chain()
    model.graph.input[0].type.tensor_type.shape.dim[1].dim_param = "k"
    with pytest.raises(OptionError, match="is dynamic"):
        estimate_memory(model)


LLAMA = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256,
    "max_position_embeddings": 131072, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
    "architectures": ["LlamaForCausalLM"], "hidden_act": "silu", "rope_theta": 500000.0,
}  # fmt: skip


def test_a_decoder_by_batch_and_length(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    needs = estimate_decoder(path, batches=(1, 4), lengths=(1024, 4096), precision="fp16")
    caches = {(need.batch, need.length): need.cache for need in needs}
    # Keys and values of 16 layers, 8 heads of 64, in 16 bits: 32 KiB a token.
    assert caches == {(b, n): b * n * 32768 for b in (1, 4) for n in (1024, 4096)}
    assert needs[0].weights == pytest.approx(2 * 1.236e9, rel=0.01)
    (packed,) = estimate_decoder(path, lengths=(1024,), precision="int4")
    assert 0.35 < packed.weights / needs[0].weights < 0.5
    with pytest.raises(OptionError, match="over the model's context"):
        estimate_decoder(path, lengths=(1 << 20,))
