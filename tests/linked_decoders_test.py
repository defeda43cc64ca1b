"""Language models as libraries: the tokens of our engine from C, in every form that is written."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import c_library
from commands import command_line
from small_decoders import Options, decoder_folder
from tiny_llama import Tiny, write_folder
from vermilion.codegen.isa import isa_of
from vermilion.errors import OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.ahead.compile import compile_decoder
from vermilion.llm.engine.open_native import open_native_decoder

pytestmark = pytest.mark.needs("c compiler")
NEW = 24
PROMPTS = {"short": 7, "long": 90}


@pytest.fixture(autouse=True)
def _instructions() -> None:
    """Skip where the processor is one that the decoder refuses."""
    if not isa_of(find_target("cpu")).has_vnni:
        pytest.skip("this machine has no AVX-512 VNNI")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a model, and with libraries of it in every form."""
    folder = tmp_path_factory.mktemp("decoders")
    write_folder(folder / "model", Tiny(bits=4))
    for ending in ("so", "a", "o"):
        found = compile_decoder(folder / "model", folder / ending / f"net.{ending}")
        assert found.tried == 4
        assert found.library is not None
    return folder


def prompt_of(count: int, vocabulary: int = 320) -> list[int]:
    return np.random.default_rng(count).integers(5, vocabulary, count).tolist()


def likeliest(folder: Path, prompt: list[int], **more: Any) -> list[int]:
    """Return what our engine writes after a prompt."""
    decoder = open_native_decoder(folder, threads=2, **more)
    state = decoder.start(1, len(prompt) + NEW)
    tokens, found = np.array([prompt]), []
    while len(found) < NEW:
        found.append(int(state.forward(tokens)[0].argmax()))
        tokens = np.array([found[-1:]])
    decoder.close()
    return found


@pytest.mark.parametrize("length", PROMPTS)
@pytest.mark.parametrize("ending", ["so", "a", "o"])
def test_a_program_writes_what_our_engine_does(
    ending: str, length: str, made: Path, tmp_path: Path
) -> None:
    where, program, prompt = made / ending, tmp_path / "program", prompt_of(PROMPTS[length])
    # In pieces that the same programs read as they do the whole: the bits are the same.
    piece = ["-DPIECE=3"] if length == "short" else []
    c_library.compile_program(
        program, str(c_library.PROGRAMS / "decoder.c"), f"-I{where}", *piece,
        str(where / f"net.{ending}"), f"-Wl,-rpath,{where}",
    )  # fmt: skip
    done = subprocess.run(
        [str(program), str(NEW), *map(str, prompt)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(map(int, done.stdout.split())) == likeliest(made / "model", prompt)


KINDS = {
    "eight bits": Options(bits=8),
    "zero points": Options(has_zeros=True),
    "tied": Options(is_tied=True),
    "tied, eight bits": Options(is_tied=True, bits=8),
    "floats": Options(bits=32),
    "an embedding times a factor": Options(embedding_factor=7.5),
    "bounded logits": Options(logits_bound=3.0, softcap=5.0),
    "a window": Options(window=8),
}


@pytest.mark.parametrize("kind", KINDS)
def test_other_kinds_give_the_logits_of_our_engine(kind: str, tmp_path: Path) -> None:
    decoder_folder(tmp_path / "model", KINDS[kind])
    assert compile_decoder(tmp_path / "model", tmp_path / "net.rai").tried == 4
