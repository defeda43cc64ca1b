"""External data as caches and disks keep it: links, files of two names, lengths left out."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from vermilion.errors import ModelError
from vermilion.ir.execute import open_session, run_session
from vermilion.ir.load import load_model

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="this system lets nobody make links"
)

WEIGHTS = np.random.default_rng(3).standard_normal((64, 48), np.float32)
DATA = "m.onnx.data"


def model(entries: dict[str, str]) -> onnx.ModelProto:
    tensor = numpy_helper.from_array(WEIGHTS, "w")
    tensor.ClearField("raw_data")
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in entries.items():
        tensor.external_data.add(key=key, value=value)
    x, y = (
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", [2, 64]), ("y", [2, 48]))
    )
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", [x], [y])
    graph.initializer.append(tensor)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def written(folder: Path, **entries: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / DATA).write_bytes(WEIGHTS.tobytes())
    onnx.save(model({"location": DATA, **entries}), folder / "m.onnx")
    return folder / "m.onnx"


def is_read(path: Path) -> bool:
    loaded = load_model(path)
    tensor = loaded.graph.initializers["w"].const_value
    assert isinstance(tensor, ir.ExternalTensor)  # mapped, not copied
    x = np.ones((2, 64), np.float32)
    found = run_session(open_session(loaded), {"x": x})["y"]
    return np.array_equal(tensor.numpy(), WEIGHTS) and np.allclose(found, x @ WEIGHTS, atol=1e-4)


def relative(blob: Path, link: Path) -> None:
    link.symlink_to(os.path.relpath(blob, link.parent))


def absolute(blob: Path, link: Path) -> None:
    link.symlink_to(blob.resolve())


def hard(blob: Path, link: Path) -> None:
    os.link(blob, link)


@pytest.mark.parametrize("link", [relative, absolute, hard])
@pytest.mark.parametrize("below", ["", "onnx", "onnx/fp32"])
def test_a_download_cache_keeps_files_as_links(
    link: Callable[[Path, Path], None], below: str, tmp_path: Path
) -> None:
    repository = tmp_path / "models--them--net"
    place = repository / "snapshots" / "0a1b" / below
    place.mkdir(parents=True)
    source = written(repository / "blobs")
    for number, name in enumerate((source.name, DATA)):
        blob = (repository / "blobs" / name).rename(repository / "blobs" / f"blob{number}")
        link(blob, place / name)
    assert is_read(place / "m.onnx")


def test_a_link_within_the_folder_is_followed(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / "real").mkdir()
    relative((tmp_path / DATA).rename(tmp_path / "real" / "w"), tmp_path / DATA)
    assert is_read(path)


@pytest.mark.parametrize("link", [relative, absolute])
def test_a_link_that_leads_out_is_refused_with_where(
    link: Callable[[Path, Path], None], tmp_path: Path
) -> None:
    # The last looks like a cache, and its link leads to another repository's file.
    for folder in (tmp_path / "plain", tmp_path / "net" / "snapshots" / "1"):
        path = written(folder)
        (tmp_path / "net" / "blobs").mkdir(parents=True, exist_ok=True)
        secret = (folder / DATA).rename(tmp_path / "secret")
        link(secret, folder / DATA)
        with pytest.raises(ModelError, match="leads out of the model's folder") as caught:
            load_model(path)
        assert str(secret.resolve()) in caught.value.message


def test_links_to_nothing_and_to_themselves_are_told(tmp_path: Path) -> None:
    path = written(tmp_path)
    (tmp_path / DATA).unlink()
    (tmp_path / DATA).symlink_to("gone")
    with pytest.raises(ModelError, match="is missing"):
        load_model(path)
    (tmp_path / DATA).unlink()
    (tmp_path / DATA).symlink_to(DATA)
    with pytest.raises(ModelError, match="cannot be found"):
        load_model(path)


@pytest.mark.parametrize(
    "entries",
    [{}, {"length": "0"}, {"offset": "0"}, {"offset": "0", "length": "0"}, {"checksum": "x"}],
    ids=str,
)
def test_a_length_may_be_left_out_or_be_0(entries: dict[str, str], tmp_path: Path) -> None:
    path = written(tmp_path, **entries)
    assert is_read(path)
    with (tmp_path / DATA).open("ab") as file:
        file.write(b"what comes behind it")
    assert is_read(path)


def test_a_length_that_is_too_short_is_still_an_error(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="does not fit"):
        load_model(written(tmp_path, length="16"))
