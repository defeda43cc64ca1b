from __future__ import annotations

import io
import json
import re
import signal
import sys
from pathlib import Path

import pytest

import tiny_llama
from commands import Command, command_line, wide_enough
from vermilion.cli.llm_run import _until_interrupted
from vermilion.llm.tokenizer import open_tokenizer

pytestmark = pytest.mark.needs("tokenizers", "jinja2")

ORT = ("--engine", "onnxruntime", "-t", "1")


@pytest.fixture
def run(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Command:
    return command_line(capfd, monkeypatch, tmp_path / "cache")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    # No token ends a text, so that lengths are known.
    return tiny_llama.write_folder(tmp_path_factory.mktemp("run") / "tiny", tiny_llama.Tiny(end=4))


def test_text_comes_and_then_how_fast_it_was(run: Command, folder: Path) -> None:
    done = run("llm", "generate", folder, "-p", "hello", "-g", "5", *ORT)
    assert done.code == 0
    assert "5 tokens at" in done.words
    assert "run by ONNX Runtime" in done.words
    data = run("llm", "generate", folder, "-p", "hello", "-g", "5", "--json", *ORT).data
    assert (data["new_tokens"], data["stopped"], data["engine_reason"]) == (
        5,
        "length",
        "asked for",
    )
    raw = run("llm", "generate", folder, "-p", "hello", "-g", "5", "--raw", "--json", *ORT).data
    assert (raw["prompt_tokens"], data["prompt_tokens"]) == (5, 24)
    assert data["prefill_tokens_per_s"] > 0
    assert data["peak_rss_mb"] > 0


def test_ctrl_c_ends_an_answer_and_a_second_one_the_program() -> None:
    # A shell that starts the tests in the background has them ignore the signal.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with _until_interrupted() as should_stop:
            assert not should_stop()
            signal.raise_signal(signal.SIGINT)
            assert should_stop()
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_stop_text_ends_the_answer_and_is_left_out(run: Command, folder: Path) -> None:
    words = ("llm", "generate", folder, "-p", "hello", "-g", "40", "--raw", "--json", *ORT)
    whole = run(*words).data["text"]
    letter = next(c for c in whole[3:] if c.isprintable() and c not in whole[:3])
    cut = run(*words, "--stop", letter, "--stop", "never there").data
    assert cut["stopped"] == "stop"
    assert cut["text"] == whole.split(letter)[0]
    assert cut["new_tokens"] < 40


@pytest.mark.needs("onnxruntime_genai")
def test_onnxruntime_genai_answers_the_same_prompt(run: Command, folder: Path) -> None:
    words = ("llm", "generate", folder, "-p", "hello", "-g", "5", "-t", "1", "--json")
    data = run(*words, "--engine", "onnxruntime-genai").data
    assert data["engine"].startswith("onnxruntime-genai")
    assert (data["new_tokens"], data["prompt_tokens"], data["stopped"]) == (5, 24, "length")


def test_beams_and_seeds(run: Command, folder: Path) -> None:
    words = ("llm", "generate", folder, "-p", "hello", "-g", "8", "--json", *ORT)
    assert run(*words, "--beams", "3").data["new_tokens"] == 8
    drawn = [
        run(*words, "--temperature", "1.5", "--seed", str(seed)).data["text"] for seed in (1, 1, 2)
    ]
    assert drawn[0] == drawn[1]
    assert drawn[0] != drawn[2]
    done = run(*words, "--beams", "3", "--temperature", "1")
    assert done.code == 2


@pytest.mark.needs("llguidance")
def test_an_answer_in_json_of_a_schema(run: Command, folder: Path, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": ["red", "green"]}')
    words = ("llm", "generate", folder, "-p", "a colour?", "--json", *ORT)
    done = run(*words, "--json-schema", schema)
    assert json.loads(done.data["text"]) in ("red", "green")
    assert done.data["stopped"] == "end"
    schema.write_text("{")
    assert "no JSON" in run(*words, "--json-schema", schema).out
    missing = run("llm", "generate", folder, "-p", "x", "--json-schema", tmp_path / "none")
    assert (missing.code, "no such file" in missing.err) == (2, True)


def test_a_conversation_reads_only_what_is_new(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\nagain\n/new\nhello\n\nnot read\n"))
    turns = run("llm", "chat", folder, "-g", "6", "--json", *ORT).data["turns"]
    assert [one["message"] for one in turns] == ["hello", "again", "hello"]
    # The answer's bytes are no text, so they are read again; what stood before them is not.
    messages = [{"role": "user", "content": "hello"}]
    messages.append({"role": "assistant", "content": turns[0]["text"]})
    messages.append({"role": "user", "content": "again"})
    tokenizer = open_tokenizer(folder)
    whole = len(tokenizer.encode(tokenizer.apply_chat_template(messages)))
    assert turns[0]["prompt_tokens"] == 24
    assert turns[1]["prompt_tokens"] <= whole - 24
    assert turns[2]["text"] == turns[0]["text"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    done = run("llm", "chat", folder, "-g", "6", "--system", "be short", *ORT)
    assert done.code == 0
    assert "1 turn" in done.words
    assert "tokens/s" in done.words


def test_a_conversation_over_the_context(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO("word " * 60 + "\n"))
    done = run("llm", "chat", folder, "-g", "6", *ORT)
    assert done.code == 2
    assert "context is 256" in done.err


def test_a_conversation_in_another_encoding(
    run: Command, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    latin = io.TextIOWrapper(io.BytesIO(b"caf\xe9\n"), encoding="utf-8")
    monkeypatch.setattr(sys, "stdin", latin)
    done = run("llm", "chat", folder, "-g", "6", *ORT)
    assert done.code == 2
    assert "no utf-8 text" in done.err


def test_speed_of_our_engine_alone(run: Command, folder: Path) -> None:
    words = ("llm", "bench", folder, "-l", "8,16", "-g", "4", "-r", "2", "--against", "none")
    done = run(*words, "--engine", "onnxruntime", "--json")
    data = done.data
    assert [one["prompt_tokens"] for one in data["results"]] == [8, 16]
    assert all(one["decode_tokens_per_s"] > 0 for one in data["results"])
    assert (data["peers"], data["ratios"]) == ([], [])
    limit = data["limits"][0]
    assert limit["bandwidth_gb_per_s"] > 0
    # Two layers of 64 x 128 + 64 x 64 + 3 x 64 x 96 floats and a head of 64 x 320, and a little.
    weights = 4 * (2 * (64 * 128 + 64 * 64 + 3 * 64 * 96) + 64 * 320)
    assert weights < limit["bytes_per_token"] < 1.2 * weights


@pytest.mark.needs("onnxruntime_genai")
def test_speed_beside_a_peer(run: Command, folder: Path) -> None:
    words = ("llm", "bench", folder, "-l", "8", "-g", "4", "-r", "2", "--engine", "onnxruntime")
    done = run(*words, "--against", "onnxruntime-genai")
    assert done.code == 0
    said = r"prompt of 8: prefill [0-9.]+ × as fast as onnxruntime-genai"
    assert re.search(said, done.words)
    assert re.search(r"onnxruntime-genai 8 [0-9.]+ [0-9.]+ [0-9.]+ ", done.words)
    assert "memory limit" in done.words
    assert wide_enough(done.out)


def test_perplexity_of_two_builds(run: Command, folder: Path, tmp_path: Path) -> None:
    rough = tiny_llama.write_folder(tmp_path / "rough", tiny_llama.Tiny(bits=4, end=4))
    words = ("--window", "32", "--tokens", "96", *ORT)
    done = run("llm", "perplexity", rough, "--against", folder, "--json", *words)
    assert done.data["tokens"] == 93
    assert 0 < done.data["divergence"] < 0.5
    assert 0.5 < done.data["same_first"] < 1
    same = run("llm", "perplexity", folder, "--against", folder, "--json", *words).data
    assert (same["divergence"], same["same_first"]) == (0, 1)
    alone = run("llm", "perplexity", folder, *words)
    assert "perplexity" in alone.words
    text = tmp_path / "text"
    text.write_text("x")
    assert "fewer than two tokens" in run("llm", "perplexity", folder, "--text", text, *words).err


@pytest.mark.needs("onnxruntime_genai")
def test_the_same_logits_as_onnxruntime_genai(run: Command, folder: Path) -> None:
    words = ("--window", "32", "--tokens", "96", "--against-engine", "onnxruntime-genai")
    data = run("llm", "perplexity", folder, "--json", *words, *ORT).data
    assert data["divergence"] < 1e-6
    assert data["against"]["engine"].startswith("onnxruntime-genai")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("generate", "DIR", "-p", "word " * 100, *ORT), "the model's context is 256"),
        (("generate", "DIR", "-p", "x", "--engine", "fast"), "--engine fast"),
        (("generate", "DIR", "-p", "x", "--prefill", "int3"), "--prefill int3"),
        (("generate", "DIR", "-p", "", *ORT), "the prompt is empty"),
        (("generate", ".", "-p", "x"), "no folder of onnxruntime-genai"),
        (("generate", "DIR", "-p", "\udcff", *ORT), "no letter"),
        (("generate", "DIR", "-p", "x", "--min-p", "2", *ORT), "min-p is 2, not from 0 to 1"),
        (("generate", "DIR", "-p", "x", "--logit-bias", "a=b", *ORT), "`--logit-bias 1234=-5`"),
        (("generate", "DIR", "-p", "x", "--logprobs", "21", *ORT), "0 to 20 are kept"),
        (("generate", "DIR", "-p", "x", "--presence-penalty", "3", *ORT), "from -2 to 2"),
        (("bench", "DIR", "-l", "8", "--against", "vllm"), "--against vllm"),
        (("bench", "DIR", "-l", "500", "--against", "none"), "the model's context is 256"),
        (("bench", "DIR", "-t", "0"), "--threads"),
        (("perplexity", "DIR", "--text", "nothing"), "no such file"),
        (("perplexity", "DIR", "--text", "model.gguf"), "no text in UTF-8, from byte 4 on"),
        (("generate", "DIR", "-p", "x", "--temperature", "nan"), "`--temperature` is nan"),
        (("generate", "DIR", "-p", "x", "--temperature", "-1"), "the temperature is 0 or more"),
        (("perplexity", "DIR", "--window", "1"), "a window has two tokens"),
    ],
)
def test_wrong_use(
    run: Command,
    folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    words: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model.gguf").write_bytes(b"GGUF\xff")
    done = run("llm", *(str(folder) if word == "DIR" else word for word in words))
    assert done.code == 2
    assert said in done.err
    assert "Traceback" not in done.err


def test_a_folder_of_another_model_and_a_missing_file(
    run: Command, folder: Path, tmp_path: Path
) -> None:
    foreign = tiny_llama.write_folder(tmp_path / "foreign", tiny_llama.Tiny(layers=1))
    data = tiny_llama.configuration(tiny_llama.Tiny())
    (foreign / "genai_config.json").write_text(json.dumps(data))
    done = run("llm", "generate", foreign, "-p", "x", *ORT)
    assert done.code == 1
    assert "past_key_values.1.key" in done.err
    (foreign / "tokenizer.json").unlink()
    done = run("llm", "generate", foreign, "-p", "x", *ORT)
    assert done.code == 1
    assert "no tokenizer" in done.err
