"""A built graph that turns and attends otherwise than its source is put right, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import tiny_llama
from vermilion.errors import ModelError
from vermilion.llm.built_graph import mend_graph
from vermilion.llm.engine.read_graph import read_graph
from vermilion.llm.source.open_source import GgufSource
from vermilion.llm.source.read_gguf_test import small

TINY = tiny_llama.Tiny()


def source(path: Path, keys: dict[str, object] | None = None, **tensors: Any) -> Path:
    """Write a GGUF file of the measures of the small folder."""
    own = {"llama.block_count": TINY.layers, "llama.context_length": TINY.context}
    return small(path, {**own, **(keys or {})}, **tensors).path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return tiny_llama.write_folder(tmp_path / "built", TINY) / "model.onnx"


def test_a_graph_like_its_source_stays_as_it_is(model: Path, tmp_path: Path) -> None:
    before = model.read_bytes()
    assert mend_graph(source(tmp_path / "m.gguf"), model) == ()
    assert model.read_bytes() == before


def test_windows_and_factors_are_put_in(model: Path, tmp_path: Path) -> None:
    factors = np.linspace(1, 8, TINY.head_size // 2)
    keys: dict[str, object] = {"llama.attention.sliding_window": 12}
    file = source(tmp_path / "m.gguf", keys, **{"rope_freqs.weight": factors})
    said = mend_graph(file, model)
    assert [text.split()[2] for text in said] == ["left", "turned"]
    layer = GgufSource(file).blueprint().layers[0]
    assert layer.turning is not None
    wanted = layer.turning.rotation(TINY.context)
    for attention in read_graph(ir.load(model)).attentions:
        assert attention.window == 12
        rotation = attention.query.rotation
        assert rotation is not None
        assert np.allclose(rotation.cosines, wanted.cosines, atol=1e-6)
        assert np.allclose(rotation.sines, wanted.sines, atol=1e-6)
    assert mend_graph(file, model) == ()


def test_tables_of_another_size_are_refused(model: Path, tmp_path: Path) -> None:
    file = source(tmp_path / "m.gguf", {"llama.rope.dimension_count": 8})
    with pytest.raises(ModelError, match="the source turns"):
        mend_graph(file, model)


def test_an_architecture_that_is_not_read_is_left_alone(model: Path, tmp_path: Path) -> None:
    file = source(tmp_path / "m.gguf", {"general.architecture": "mamba"})
    assert mend_graph(file, model) == ()
