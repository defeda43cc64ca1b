"""Images of decoders: found without reading, never another model's, corrected where broken."""

from __future__ import annotations

import json
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import vermilion
from small_decoders import VOCABULARY, Options, decoder_folder
from vermilion.llm.decoder import EngineOptions, open_decoder, open_known
from vermilion.llm.engine.open_native import open_native_decoder
from vermilion.llm.genai_config import read_genai_config
from vermilion.store.arrays import DATA_FILE
from vermilion.store.entry import INDEX_FILE
from vermilion.store.namespaces import IMAGES, NOTES
from vermilion.store.store import Store

TOKENS = np.random.default_rng(0).integers(0, VOCABULARY, (1, 40))
Logits = NDArray[np.float32]

# Opens a folder as it was opened before, and says which of the large libraries that took.
_OPEN = """
import sys
from pathlib import Path
from vermilion.llm.genai_config import read_genai_config
from vermilion.llm.decoder import EngineOptions, open_known
options = EngineOptions(1, cache=Path(sys.argv[2]))
opened = open_known(read_genai_config(Path(sys.argv[1])), options)
libraries = ("onnx", "onnx_ir", "onnxruntime", "sympy", "llvmlite", "jinja2", "tokenizers")
print(opened is not None, *[name for name in libraries if name in sys.modules])
"""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return decoder_folder(tmp_path / "model", Options(has_zeros=True, is_tied=True))


def opened(folder: Path, cache: Path, prefill: str = "auto") -> Logits:
    options = EngineOptions(1, engine="native", prefill=prefill, cache=cache)  # type: ignore[arg-type]
    decoder = open_decoder(read_genai_config(folder), options).decoder
    return decoder.start(1, 64).forward(TOKENS, True)


def is_known(folder: Path, cache: Path) -> bool:
    return open_known(read_genai_config(folder), EngineOptions(1, cache=cache)) is not None


def images(cache: Path) -> list[Path]:
    return list((cache / IMAGES.name).glob("*"))


def test_the_second_opening_gives_the_same_and_loads_no_library(folder: Path, cache: Path) -> None:
    assert not is_known(folder, cache)
    first = opened(folder, cache)
    assert is_known(folder, cache)
    assert np.array_equal(opened(folder, cache), first)
    plain = open_native_decoder(folder, threads=1, cache=cache)
    assert np.array_equal(plain.start(1, 64).forward(TOKENS, True), first)
    command = [sys.executable, "-c", _OPEN, str(folder), str(cache)]
    # The very code of this process: an image is found by the code that made it.
    environment = os.environ | {"PYTHONPATH": str(Path(vermilion.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    assert done.stdout.split() == ["True"]


@pytest.mark.parametrize(
    "options",
    [Options(bits=32), Options(bits=8), Options(has_bias=True, is_split=True, logits_bound=2.0)],
)
def test_every_kind_of_weights_is_kept(options: Options, tmp_path: Path, cache: Path) -> None:
    folder = decoder_folder(tmp_path / "model", options)
    first = opened(folder, cache)
    assert is_known(folder, cache)
    assert np.array_equal(opened(folder, cache), first)


def test_other_weights_are_another_image(folder: Path, cache: Path) -> None:
    """Also where the file has its name, its size and its time again."""
    first = opened(folder, cache)
    file = folder / "model.onnx"
    status = file.stat()
    decoder_folder(folder, Options(has_zeros=True, is_tied=True, seed=1))
    assert file.stat().st_size == status.st_size
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert not is_known(folder, cache)
    assert not np.allclose(opened(folder, cache), first)
    assert len(images(cache)) == 2


def _move(folder: Path) -> Path:
    return folder.rename(folder.with_name("moved"))


def _copy(folder: Path) -> Path:
    return Path(shutil.copytree(folder, folder.with_name("copy")))


def _touch(folder: Path) -> Path:
    (folder / "model.onnx").touch()
    return folder


def _configure(folder: Path) -> Path:
    file = folder / "genai_config.json"
    data = json.loads(file.read_text())
    data["search"]["max_length"] = 32
    file.write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize("change", [_move, _copy, _touch, _configure])
def test_the_same_weights_have_one_image(
    change: Callable[[Path], Path], folder: Path, cache: Path
) -> None:
    first = opened(folder, cache)
    other = change(folder)
    assert not is_known(other, cache)
    assert np.array_equal(opened(other, cache), first)
    assert len(images(cache)) == 1
    assert is_known(other, cache)


def test_each_way_to_multiply_has_an_image(folder: Path, cache: Path) -> None:
    assert not np.array_equal(opened(folder, cache, "fp32"), opened(folder, cache, "int8"))
    assert len(images(cache)) == 2


def _flip(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 255
    file.write_bytes(data)


def _truncate(file: Path) -> None:
    os.truncate(file, file.stat().st_size // 2)


@pytest.mark.parametrize("damage", [_flip, _truncate, Path.unlink])
def test_a_damaged_image_is_made_again_and_says_so(
    damage: Callable[[Path], None], folder: Path, cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first = opened(folder, cache)
    (image,) = images(cache)
    damage(image / DATA_FILE)
    assert not is_known(folder, cache)
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(opened(folder, cache), first)
    assert "made again" in caplog.text
    assert is_known(folder, cache)
    assert images(cache) == [image]


def test_a_note_that_names_another_image_is_not_believed(folder: Path, cache: Path) -> None:
    opened(folder, cache)
    (note,) = (cache / NOTES.name).iterdir()
    key = images(cache)[0].name
    shutil.copytree(cache / IMAGES.name / key, cache / IMAGES.name / ("0" * 32))
    assert is_known(folder, cache)
    index = note / INDEX_FILE
    index.write_text(index.read_text().replace(key, "0" * 32))
    assert not is_known(folder, cache)


def test_an_image_under_another_key_is_not_taken(folder: Path, cache: Path) -> None:
    """Also where this user signed the note that names it."""
    opened(folder, cache)
    (note,) = (cache / NOTES.name).iterdir()
    (image,) = images(cache)
    image.rename(image.with_name("0" * 32))
    store = Store(cache)
    store.remove(NOTES, note.name)
    assert store.get_or_make(NOTES, note.name, lambda _: {"key": "0" * 32}) is not None
    assert not is_known(folder, cache)


def test_a_decoder_outlives_its_image(folder: Path, cache: Path) -> None:
    opened(folder, cache)
    known = open_known(read_genai_config(folder), EngineOptions(1, cache=cache))
    assert known is not None
    state = known.decoder.start(1, 64)
    before = state.forward(TOKENS)
    if sys.platform != "win32":  # where what is mapped cannot be removed
        shutil.rmtree(cache)
    state.rewind(0)
    assert np.array_equal(state.forward(TOKENS), before)


def test_without_room_the_weights_stay_in_memory(
    folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    expected = opened(folder, cache.with_name("other"))
    monkeypatch.setattr(Store, "free_bytes", lambda _: 1000)
    with caplog.at_level(logging.WARNING):
        assert np.array_equal(opened(folder, cache), expected)
    assert "not kept" in caplog.text
    assert images(cache) == []


def test_several_processes_make_one_image(folder: Path, cache: Path) -> None:
    script = _OPEN.replace("open_known(", "open_decoder(").replace("open_known", "open_decoder")
    command = [sys.executable, "-c", script, str(folder), str(cache)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    for process in running:
        out, _ = process.communicate(timeout=300)
        assert process.returncode == 0
        assert out.startswith("True")
    assert len(images(cache)) == 1
    assert list((cache / NOTES.name).iterdir())
