"""Language models as libraries: the tokens of our engine from C, in every form that is written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import c_library
from commands import command_line
from random_models import MODELS
from small_decoders import Options, decoder_folder
from tiny_llama import Tiny, write_folder
from vermilion.clib.library import plugin_library
from vermilion.codegen.isa import isa_of
from vermilion.errors import ArtifactError, DeviceError, OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.ahead.compile import compile_decoder
from vermilion.llm.ahead.tried import file_reads
from vermilion.llm.engine.block_types import block_type, block_types
from vermilion.llm.engine.block_types_test import random_rows
from vermilion.llm.engine.open_native import isa_for, open_native_decoder
from vermilion.llm.source.read_gguf_test import small
from vermilion.runtime.session import Session

pytestmark = pytest.mark.needs("c compiler")
NEW = 24
PROMPTS = {"short": 7, "long": 90}


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


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def _rows(name: str) -> Any:
    found = block_type(name)
    if found is not None:
        return name, random_rows(found, 320, 256)
    numbers = np.random.default_rng(2).standard_normal((320, 256), np.float32)
    if name == "F16":
        return name, numbers.astype(np.float16).view(np.uint8)
    return name, (numbers.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)


@pytest.mark.parametrize("name", [*block_types(), "F16", "BF16"])
def test_rows_that_tokens_begin_with_are_those_of_the_file(
    name: str, cache: Path, tmp_path: Path
) -> None:
    """All types of blocks: one program for all, so that what is left to differ is the embedding."""
    tensors = {"token_embd.weight": _rows(name), "output.weight": _rows("Q8_0")}
    for layer_norm in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        tensors[f"{layer_norm}.weight"] = np.ones(256)
    columns = {"attn_q": 256, "attn_k": 128, "attn_v": 128, "attn_output": 256}
    columns |= {"ffn_gate": 256, "ffn_up": 256, "ffn_down": 256}
    for product, count in columns.items():
        tensors[f"blk.0.{product}.weight"] = ("Q8_0", _rows("Q8_0")[1][:count])
    lengths = {"llama.embedding_length": 256, "llama.feed_forward_length": 256}
    small(tmp_path / "m.gguf", lengths, **tensors)
    found = compile_decoder(tmp_path / "m.gguf", tmp_path / "m.rai", prefill="int8", cache=cache)
    assert found.tried == 4


@pytest.mark.needs("torch", "transformers")
def test_a_sequence_that_turns_otherwise_is_to_be_read_again(cache: Path, tmp_path: Path) -> None:
    """Phi 3: beyond a length, all positions have other cosines."""
    (model,) = [one for name, one in MODELS.items() if "longrope" in str(one.fields)][:1]
    model.save(tmp_path / "model")
    output = tmp_path / "net.rai"
    assert compile_decoder(tmp_path / "model", output, cache=cache).tried == 4
    from vermilion.llm.ahead.parts import PART, TABLE_FILE
    from vermilion.runtime.artifact import open_artifact

    table = json.loads(bytes(open_artifact(output).read(f"{PART}/{TABLE_FILE}")))
    short = table["facts"]["short"]
    assert short > 0
    tokens = prompt_of(short + 3, 160)
    with file_reads(output, short + 8) as whole, file_reads(output, short + 8) as parts:
        wanted = whole.read(tokens)
        parts.read(tokens[:short])
        with pytest.raises(DeviceError, match="are turned otherwise") as caught:
            parts.read(tokens[short:])
        assert "set `length` to 0" in str(caught.value)
        parts.cache.length = 0
        assert parts.read(tokens).tobytes() == wanted.tobytes()
        parts.cache.length = short - 1  # back again
        with pytest.raises(DeviceError, match="this one now is no more"):
            parts.read(tokens[short - 1 : short])


def test_the_same_pieces_give_the_same_bits_whatever_was_there(made: Path) -> None:
    """More tokens than one pass takes, and a sequence in memory that another had."""
    output, prompt = made / "net.rai", prompt_of(240)
    compile_decoder(made / "model", output)
    with pytest.raises(ArtifactError, match="this is a language model") as caught:
        Session(output)
    assert "vermilion_decoder_open" in str(caught.value.hint)
    with file_reads(output, 256) as one, file_reads(output, 256) as other:
        wanted = one.read(prompt)
        other.read(prompt_of(200))
        other.cache.length = 0
        assert other.read(prompt).tobytes() == wanted.tobytes()


@pytest.mark.parametrize(
    ("name", "targets", "reason"),
    [
        ("net.zip", "cpu", "neither a library nor a `.rai`"),
        ("net.rai", "zen4,zen5", "code for one target"),
        ("net.so", ",", "code for one target"),
        ("net.so", "gfx942", "is none"),
    ],
)
def test_wrong_use_is_told(
    name: str, targets: str, reason: str, made: Path, tmp_path: Path
) -> None:
    with pytest.raises(OptionError, match=reason) as caught:
        compile_decoder(made / "model", tmp_path / name, targets=targets)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_a_processor_without_what_kernels_need_is_refused() -> None:
    target = find_target("x86-64-v3")
    assert target.cpu is not None
    old = replace(target, cpu=replace(target.cpu, features=target.features - {"fma"}))
    with pytest.raises(UnsupportedError, match="needs AVX2, FMA and F16C: fma not there") as caught:
        isa_for(old)
    assert caught.value.hint


@pytest.mark.needs("avx2")
def test_code_for_processors_without_avx_512_is_tried(made: Path, tmp_path: Path) -> None:
    found = compile_decoder(
        made / "model", tmp_path / "net.so", targets="x86-64-v3,zen2", prefill="int8"
    )
    assert found.targets == ("zen2", "x86-64-v3")
    assert found.tried == 4


def test_what_the_command_says(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vermilion = command_line(capfd, monkeypatch, tmp_path / "cache")
    output = tmp_path / "libsmall.so"
    data = vermilion("llm", "compile", made / "model", "-o", output, "--context", 64, "--json").data
    assert (data["context"], data["vocabulary"], data["tried"]) == (64, 320, 4)
    assert data["library"]["name"] == "small"
    assert "#define SMALL_CONTEXT 64" in (tmp_path / "small.h").read_text()
    done = vermilion("llm", "compile", made / "model", "-o", output, "--context", 9999)
    assert done.code == 2
    assert "a context of 9999 tokens" in done.err


GENAI = """
import json, sys
import numpy as np
import onnxruntime_genai as og

folder, plugin, new = sys.argv[1], sys.argv[2], int(sys.argv[3])
og.disable_telemetry_events()
og.register_execution_provider_library("vermilion", plugin)
model = og.Model(folder)

def written(prompt, length, again=()):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=length, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(np.array([prompt], np.int32))
    found = []
    while len(found) < new:
        generator.generate_next_token()
        found.append(int(generator.get_next_tokens()[0]))
    if again:
        generator.rewind_to(len(prompt))
        generator.append_tokens(np.array([again], np.int32))
        return generator.get_logits().reshape(-1)[:5].tolist()
    return found

def refused(**options):
    params = og.GeneratorParams(model)
    params.set_search_options(**options)
    try:
        generator = og.Generator(model, params)
        batch = options.get("batch_size", 1)
        generator.append_tokens(np.full((batch, 4), 9, np.int32))
        generator.generate_next_token()
    except Exception as error:
        return str(error)
    return "it ran"

for line in sys.stdin:
    print(json.dumps(written(json.loads(line), 200)), flush=True)
print(json.dumps(written([9, 8, 7], 200, [30, 31])))
for options in ({"max_length": 20}, {"max_length": 100, "num_beams": 2},
                {"max_length": 100, "batch_size": 2},
                {"max_length": 100, "past_present_share_buffer": False}):
    print(json.dumps(refused(**options)))
"""


@pytest.mark.needs("onnxruntime_genai")
@pytest.mark.parametrize("prefill", ["bf16", "fp32"])
def test_onnxruntime_genai_writes_the_tokens_of_our_engine(prefill: Any, tmp_path: Path) -> None:
    """A folder whose decoder runs on our provider, inside of onnxruntime-genai itself."""
    model, folder = decoder_folder(tmp_path / "model"), tmp_path / "genai"
    if prefill == "bf16" and not isa_of(find_target("cpu")).has_bf16:
        pytest.skip("this machine has no AVX-512 BF16")
    assert compile_decoder(model, folder, prefill=prefill).tried == 4
    prompts = [prompt_of(count) for count in PROMPTS.values()]
    done = subprocess.run(
        [sys.executable, "-c", GENAI, str(folder), str(plugin_library()), str(NEW)],
        input="".join(f"{json.dumps(prompt)}\n" for prompt in prompts),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    *written, again, short, beams, batch, apart = map(json.loads, done.stdout.splitlines())
    assert written == [likeliest(model, prompt, prefill=prefill) for prompt in prompts]
    decoder = open_native_decoder(model, threads=2, prefill=prefill)
    state = decoder.start(1, 64)
    state.forward(np.array([[9, 8, 7]]))
    assert again == [float(one) for one in state.forward(np.array([[30, 31]]))[0][:5]]
    assert "a `max_length` of 64 or more" in short
    assert "no beams" in beams or "without beams" in beams
    assert "a batch of 1" in batch
    assert "past_present_share_buffer" in apart


@pytest.mark.needs("onnxruntime_genai")
def test_the_folder_runs_by_the_command_too(
    made: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vermilion = command_line(capfd, monkeypatch, tmp_path / "cache")
    folder = tmp_path / "genai"
    assert vermilion("llm", "compile", made / "model", "-o", folder).code == 0
    assert vermilion("llm", "config", folder).code == 0
    words = ("llm", "generate", folder, "-p", "tea", "-g", 60, "--json")
    said = vermilion(*words).data
    assert said["engine"].startswith("onnxruntime-genai")
    # Its tokenizer leaves out what is no whole letter.
    ours = vermilion("llm", "generate", made / "model", *words[3:]).data["text"]
    assert said["text"][:5] == ours[:5]
    done = vermilion("llm", "generate", folder, "-p", "tea", "-g", 4)
    assert (done.code, "keeps blocks of 64" in done.err) == (2, True)
    done = vermilion("llm", "compile", made / "model", "-o", folder)
    assert (done.code, "is there already" in done.err) == (2, True)


DAMAGED = """
import ctypes, json, random, shutil, struct, sys
from pathlib import Path

from vermilion.llm.ahead.tried import c_library
from vermilion.runtime.manifest import _content_digest
from vermilion.store.digest import digest_of

file, folder, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
own, draw = c_library(), random.Random(3)
sound, texts, opened = file.read_bytes(), set(), 0

def tried(open_it):
    global opened
    decoder = ctypes.c_void_p()
    status = open_it(ctypes.byref(decoder))
    if not status:
        opened += 1
        own.vermilion_decoder_free(decoder)
        return
    text = own.vermilion_status_text(status).decode()
    own.vermilion_status_free(status)
    assert "hint:" in text, text
    texts.add(text.split("(")[0][:60])

for number in range(count):
    data, at = bytearray(sound), draw.randrange(len(sound))
    kind = number % 4
    if kind == 0:
        data[at] ^= 1 << draw.randrange(8)
    elif kind == 1:
        del data[at:]
    elif kind == 2:
        data[at : at + 8] = struct.pack("<Q", draw.randrange(2**63))
    else:
        data[at:at] = draw.randbytes(draw.randrange(1, 64))
    memory = bytes(data)
    tried(lambda decoder: own.vermilion_decoder_open_memory(memory, len(memory), None, decoder))
print(opened)
# Files that say they are whole: the digests are right, the table is not.
manifest = json.loads((folder / "manifest.json").read_text())
table = (folder / "decoder" / "kernels.json").read_bytes()
opened = 0
for _ in range(count // 4):
    data, at = bytearray(table), draw.randrange(len(table))
    data[at : at + 1] = bytes([draw.choice(b'0123456789-[]{},"a')])
    (folder / "decoder" / "kernels.json").write_bytes(data)
    for member in manifest["members"]:
        if member["name"] == "decoder/kernels.json":
            member["size"], member["sha256"] = len(data), digest_of(bytes(data))
    manifest["digest"] = _content_digest(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))
    tried(lambda decoder: own.vermilion_decoder_open(str(folder).encode(), None, decoder))
print(opened)
print(len(texts))
"""


@pytest.mark.parametrize("count", [200, pytest.param(1000, marks=pytest.mark.long)])
def test_damaged_decoders_end_in_a_status(count: int, made: Path, tmp_path: Path) -> None:
    output = tmp_path / "net.rai"
    compile_decoder(made / "model", output)
    with zipfile.ZipFile(output) as archive:
        archive.extractall(tmp_path / "folder")
    done = subprocess.run(
        [sys.executable, "-c", DAMAGED, str(output), str(tmp_path / "folder"), str(count)],
        capture_output=True, text=True, check=False, env={**os.environ, "VERMILION_TRUST": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    whole, tables, kinds = map(int, done.stdout.split())
    assert whole < count // 5  # of the model as it came nothing is read
    assert 0 < tables < count // 4
    assert kinds > 8
