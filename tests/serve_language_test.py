"""Language models behind HTTP, as OpenAI's client meets them: the texts are the library's."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from served import Asker, serving, until, value
from tiny_llama import Tiny, write_folder
from vermilion.llm.decoder import EngineOptions
from vermilion.llm.open_model import OwnModel, open_own_model, read_model_config
from vermilion.serve import language as language_module
from vermilion.serve.run import ModelServer

pytestmark = pytest.mark.needs("starlette", "uvicorn", "prometheus_client", "openai", "tokenizers")
MODEL = "tiny"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tiny = Tiny(bits=4, context=512, end=319)
    return write_folder(tmp_path_factory.mktemp("models") / MODEL, tiny)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("code")


@pytest.fixture(scope="module")
def library(folder: Path, cache: Path) -> OwnModel:
    return open_own_model(read_model_config(folder), EngineOptions(threads=1, cache=cache))


@pytest.fixture(scope="module")
def server(folder: Path, cache: Path, library: OwnModel) -> Iterator[ModelServer]:
    del library  # what it compiled is found
    settings = {"threads": 1, "cache_tokens": 4096, "prompt_chunk": 32, "max_queue": 40}
    with serving(folder, cache_dir=cache, time_limit_s=60.0, **settings) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ModelServer) -> Iterator[Any]:
    import openai

    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        yield client


@pytest.fixture
def ask(server: ModelServer) -> Iterator[Asker]:
    asker = Asker(server)
    yield asker
    asker.close()


def written(library: OwnModel, tokens: list[int], new: int, **search: Any) -> str:
    """Return what the library writes, alone."""
    options = {"max_length": len(tokens) + new, "do_sample": False, **search}
    generator = library.generator(options)
    generator.append_tokens(tokens)
    stream, pieces = library.tokenizer.create_stream(), []
    while not generator.is_done():
        generator.generate_next_token()
        token = int(generator.get_next_tokens()[0])
        if token not in library.ends.ends:
            pieces.append(stream.decode(token))
    return "".join(pieces)


def chat_tokens(library: OwnModel, text: str) -> list[int]:
    return library.encode(text, as_chat=True)


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def endless(library: OwnModel, new: int) -> str:
    """Return a message whose answer has so many tokens: the model does not end it before."""
    for text in ("What is it?", *"abcdefghij"):
        tokens = chat_tokens(library, text)
        generator = library.generator({"max_length": len(tokens) + new, "do_sample": False})
        generator.append_tokens(tokens)
        while not generator.is_done():
            generator.generate_next_token()
        if generator.token_count() == len(tokens) + new:
            return text
    raise AssertionError("all of them end")


def test_a_conversation(client: Any, library: OwnModel) -> None:
    text = endless(library, 24)
    tokens = chat_tokens(library, text)
    wanted = written(library, tokens, 24)
    asked = {"model": MODEL, "messages": messages(text), "max_tokens": 24}
    found = client.chat.completions.create(**asked, temperature=0)
    (choice,) = found.choices
    assert (choice.message.role, choice.message.content) == ("assistant", wanted)
    assert choice.finish_reason == "length"
    assert found.usage.prompt_tokens == len(tokens)
    assert found.usage.completion_tokens == 24
    pieces = list(
        client.chat.completions.create(
            **asked, temperature=0, stream=True, stream_options={"include_usage": True}
        )
    )
    joined = "".join(p.choices[0].delta.content or "" for p in pieces if p.choices)
    assert joined == wanted
    assert pieces[0].choices[0].delta.role == "assistant"
    assert pieces[-2].choices[0].finish_reason == "length"
    assert pieces[-1].usage.total_tokens == len(tokens) + 24
    parts = [{"role": "user", "content": [{"type": "text", "text": text}]}]
    asked["messages"] = parts
    assert (
        client.chat.completions.create(**asked, temperature=0).choices[0].message.content == wanted
    )


def test_a_text_goes_on(client: Any, library: OwnModel) -> None:
    tokens = library.encode("Once upon a time", as_chat=False)
    wanted = written(library, tokens, 12)
    asked = {"model": MODEL, "max_tokens": 12, "temperature": 0}
    for prompt in ("Once upon a time", tokens):
        assert client.completions.create(prompt=prompt, **asked).choices[0].text == wanted
    found = client.completions.create(prompt=["Once upon a time", "b"], n=2, echo=True, **asked)
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    other = written(library, library.encode("b", as_chat=False), 12)
    texts = [choice.text for choice in found.choices]
    assert texts == ["Once upon a time" + wanted] * 2 + ["b" + other] * 2
    assert found.usage.completion_tokens == 48
    pieces = client.completions.create(prompt="Once upon a time", stream=True, **asked)
    assert "".join(piece.choices[0].text for piece in pieces) == wanted


def test_seeds_draw_what_the_library_draws(client: Any, library: OwnModel) -> None:
    tokens = library.encode("Once", as_chat=False)
    search = {"do_sample": True, "top_k": 0, "top_p": 0.9, "temperature": 0.8, "random_seed": 7}
    wanted = written(library, tokens, 16, **search)
    asked = {"model": MODEL, "prompt": "Once", "max_tokens": 16, "temperature": 0.8, "top_p": 0.9}
    found = client.completions.create(**asked, seed=7, n=3)
    assert found.choices[0].text == wanted
    assert len({choice.text for choice in found.choices}) == 3
    again = client.completions.create(**asked, seed=7, n=3)
    assert [choice.text for choice in again.choices] == [choice.text for choice in found.choices]


def test_likelihoods_and_biases(client: Any, library: OwnModel) -> None:
    asked = {"model": MODEL, "messages": messages("a"), "max_tokens": 4, "temperature": 0}
    found = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    rows = found.choices[0].logprobs.content
    assert len(rows) == 4
    for row in rows:
        assert row.token == row.top_logprobs[0].token
        assert row.logprob == row.top_logprobs[0].logprob <= 0
        assert len(row.top_logprobs) == 3
    letter = library.tokenizer.encode("Q")[0]
    found = client.chat.completions.create(**asked, logit_bias={str(letter): 100})
    assert found.choices[0].message.content == "QQQQ"
    found = client.completions.create(
        model=MODEL, prompt="a", max_tokens=3, temperature=0, logprobs=2, logit_bias={letter: 100}
    )
    told = found.choices[0].logprobs
    assert (told.tokens, told.text_offset) == (["Q"] * 3, [0, 1, 2])
    assert len(told.top_logprobs[0]) == 2


def test_texts_that_end_one(client: Any, library: OwnModel) -> None:
    letters = dict.fromkeys(library.tokenizer.encode("Q"), 100)
    asked = {"model": MODEL, "messages": messages("a"), "max_tokens": 9, "logit_bias": letters}
    found = client.chat.completions.create(**asked, temperature=0, stop=["QQQ"])
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("", "stop")
    end = {str(library.ends.ends[0]): 100}
    found = client.chat.completions.create(model=MODEL, messages=messages("a"), logit_bias=end)
    assert (found.choices[0].message.content, found.choices[0].finish_reason) == ("", "stop")
    assert found.usage.completion_tokens == 1


@pytest.mark.needs("llguidance")
def test_json_of_a_schema(client: Any) -> None:
    schema = {
        "type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"],
        "additionalProperties": False,
    }  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    found = client.chat.completions.create(
        model=MODEL, messages=messages("a"), response_format=form, max_tokens=60, seed=1
    )
    assert json.loads(found.choices[0].message.content)["a"] in (1, 2)


def test_many_texts_of_several_lengths_are_each_as_alone(
    client: Any, library: OwnModel, server: ModelServer
) -> None:
    texts = ["x" * length for length in (1, 90, 7, 40, 3, 150, 64, 17, 33, 5)]
    lengths = [30, 5, 20, 9, 40, 3, 12, 25, 1, 16]
    wanted = [
        written(library, library.encode(text, as_chat=False), new)
        for text, new in zip(texts, lengths, strict=True)
    ]

    def one(at: int) -> str:
        asked = {"model": MODEL, "prompt": texts[at], "max_tokens": lengths[at], "temperature": 0}
        return client.completions.create(**asked).choices[0].text

    with ThreadPoolExecutor(len(texts)) as pool:
        assert list(pool.map(one, range(len(texts)))) == wanted
    numbers = server.metrics.text()[0].decode()
    steps = [
        line for line in numbers.splitlines() if line.startswith("vermilion_batch_size_bucket")
    ]
    assert float(steps[0].split()[-1]) < float(steps[-1].split()[-1])  # of one, and of any number
    cached = 'vermilion_cached_prompt_tokens_total{model="tiny"} '
    before = next(float(s.split()[-1]) for s in numbers.splitlines() if s.startswith(cached))
    assert before >= 64  # what prompts begin with alike


def test_a_worker_that_is_killed_changes_no_text(
    client: Any, library: OwnModel, server: ModelServer
) -> None:
    texts = ["Once upon", "a longer prompt, of more than sixteen tokens", "c"]
    wanted = [written(library, library.encode(text, as_chat=False), 200) for text in texts]

    def one(text: str) -> str:
        asked = {"model": MODEL, "prompt": text, "max_tokens": 200, "temperature": 0}
        pieces = client.completions.create(**asked, stream=True)
        return "".join(piece.choices[0].text for piece in pieces)

    served: Any = server.catalog.version(MODEL).served
    start = written_tokens(server)
    with ThreadPoolExecutor(3) as pool:
        futures = [pool.submit(one, text) for text in texts]
        until(lambda: written_tokens(server) > start + 30)
        psutil.Process(served.process).kill()
        assert [future.result() for future in futures] == wanted


def written_tokens(server: ModelServer) -> float:
    numbers = server.metrics.text()[0].decode().splitlines()
    line = next(s for s in numbers if s.startswith("vermilion_generated_tokens_total"))
    return float(line.split()[-1])


def test_who_leaves_is_not_waited_for(client: Any, server: ModelServer) -> None:
    asked = {"model": MODEL, "prompt": "a", "max_tokens": 500, "temperature": 0, "n": 8}
    pieces = client.completions.create(**asked, stream=True)
    next(iter(pieces))
    running = 'vermilion_running_sequences{model="tiny"} '

    def texts() -> float:
        numbers = server.metrics.text()[0].decode().splitlines()
        return float(next(s for s in numbers if s.startswith(running)).split()[-1])

    until(lambda: texts() > 0)
    pieces.close()
    until(lambda: texts() == 0)


def test_what_is_wrong_is_told(client: Any, ask: Asker) -> None:
    import openai

    good = {"model": MODEL, "messages": messages("a")}
    for changes, words in (
        ({"messages": []}, "at least one"),
        ({"messages": [{"role": "nobody", "content": "a"}]}, "role"),
        ({"temperature": 3}, "from 0 to 2"),
        ({"max_tokens": 100_000}, "context is 512"),
        ({"messages": messages("a" * 600)}, "context is 512"),
        ({"logit_bias": {"999999": 1}}, "no token 999999"),
        ({"n": 0}, "from 1"),
        ({"stop": [""]}, "stop"),
        ({"tools": [{}]}, "tools"),
        ({"response_format": {"type": "xml"}}, "response_format"),
    ):
        with pytest.raises(openai.BadRequestError, match=words):
            client.chat.completions.create(**{**good, **changes})
    with pytest.raises(openai.NotFoundError, match="no model `none`"):
        client.chat.completions.create(model="none", messages=messages("a"))
    assert [one.id for one in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "vermilion"
    assert ask("/v2/models/tiny")[0] == 404
    status, told, _ = ask("/v1/chat/completions", {**good, "stream": True, "n": 999})
    assert (status, told["error"]["type"]) == (400, "invalid_request_error")


SCHEMAS: tuple[Any, ...] = (
    {}, {"type": 3}, {"type": "object", "required": ["a"]}, {"enum": []}, {"$ref": "#"},
    {"const": float("nan")}, {"enum": ["\ud800"]}, {"pattern": "("}, {"minimum": 10**400},
    {"type": "string", "minLength": 10**9}, {"type": "array", "minItems": 2, "maxItems": 1},
    {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}, {"not": {}}, {"multipleOf": 0},
)  # fmt: skip


def test_a_process_that_ends_with_nothing_to_do_is_started_again(
    server: ModelServer, ask: Asker
) -> None:
    def state() -> tuple[str, str]:
        (row,) = ask("/v2/repository/index", b"")[1]
        return row["state"], row["reason"]

    served: Any = server.catalog.version(MODEL).served
    old = served.process
    psutil.Process(old).kill()
    until(lambda: served.process != old)  # and nobody has asked
    until(lambda: state() == ("READY", ""))
    assert ask("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1})[0] == 200


def test_a_model_whose_process_is_gone_is_not_ready(
    folder: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(language_module, "MOST_DEATHS", 1)
    own = Path(shutil.copytree(folder, tmp_path / "lost"))
    with serving(own, cache_dir=cache, threads=1, cache_tokens=256) as server:
        ask = Asker(server)
        assert value(server, 'vermilion_model_ready{model="lost"}') == 1
        shutil.rmtree(own)
        psutil.Process(server.catalog.version("lost").served.process).kill()  # type: ignore[union-attr]
        until(lambda: server.catalog.version("lost").state == "UNAVAILABLE")
        assert "none of its processes is left" in server.catalog.version("lost").reason
        assert value(server, 'vermilion_model_ready{model="lost"}') == 0
        assert (ask("/v2/health/ready")[0], ask("/v1/models")[1]["data"]) == (503, [])
        asked = {"model": "lost", "prompt": "a", "max_tokens": 1}
        assert ask("/v1/completions", asked)[0] == 503
        ask.close()


def test_what_goes_wrong_costs_one_request_and_no_thread(
    server: ModelServer, ask: Asker, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise KeyError("events")

    asked = {"model": MODEL, "prompt": "a", "max_tokens": 1}
    with monkeypatch.context() as patch:
        patch.setattr(language_module.LanguageModel, "_hand_over", broken)
        status, told, _ = ask("/v1/completions", asked)
    assert (status, told["error"]["message"]) == (500, "this is a fault of the server")
    assert ask("/v1/completions", asked)[0] == 200
    assert server.catalog.version(MODEL).state == "READY"
    with monkeypatch.context() as patch:  # where nothing can be told of one request
        patch.setattr(language_module.LanguageModel, "_work", broken)
        until(lambda: server.catalog.version(MODEL).state == "UNAVAILABLE")
    assert ask("/v1/completions", asked)[0] == 503
    assert ask(f"/v2/repository/models/{MODEL}/load", b"")[0] == 200
    assert ask("/v1/completions", asked)[0] == 200


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.long)])
def test_bodies_of_all_kinds(count: int, ask: Asker, server: ModelServer) -> None:
    draw = random.Random(3)
    values: list[Any] = [None, -1, 0, 1, 2.5, 1e300, True, "", "a", [], [1], ["a"], {}, {"a": 1}]
    values += [[[1], [2]], [{"role": "user", "content": "b"}], float("nan"), 10**30, 10**400]
    values += ["\ud800", "\0", [{"role": ["user"], "content": "b"}], {"role": "user"}, 1e-300]
    values += [[{"role": "user", "content": "\udcff"}], [{"function": {"name": "f"}}], "[" * 99]
    names = ("messages", "prompt", "model", "temperature", "top_p", "n", "stop", "logprobs",
             "top_logprobs", "logit_bias", "seed", "stream", "stream_options", "response_format",
             "tools", "max_tokens", "presence_penalty", "echo", "top_k", "min_p", "input",
             "documents", "query", "user")  # fmt: skip
    counts: dict[int, int] = {}
    restarts = 'vermilion_worker_restarts_total{model="tiny"}'
    before = value(server, restarts)
    for number in range(count):
        is_chat = number % 3 != 0
        base: dict[str, Any] = {"model": MODEL, "max_tokens": 1}
        base |= {"messages": messages("a")} if is_chat else {"prompt": "a"}
        for _ in range(draw.randint(1, 3)):
            base[draw.choice(names)] = draw.choice(values)
        if not isinstance(base["max_tokens"], int) or base["max_tokens"] != 1:
            base["max_tokens"] = draw.choice([1, -1, "a", 10**9])
        path = draw.choice(["/v1/chat/completions"] * 3 if is_chat else ["/v1/completions"] * 3)
        if number % 10 == 0:
            path = draw.choice(["/v1/embeddings", "/v1/rerank"])
        told = ask(path, base)
        counts[told[0]] = counts.get(told[0], 0) + 1
        assert told[0] in (200, 400, 404), (path, base, told)
    for schema in SCHEMAS:
        form = {"type": "json_schema", "json_schema": {"schema": schema}}
        base = {"model": MODEL, "messages": messages("a"), "max_tokens": 9}
        told = ask("/v1/chat/completions", {**base, "response_format": form})
        assert told[0] in (200, 400), (schema, told)
    assert counts[200] > count // 60
    assert counts[400] > count // 4
    assert value(server, restarts) == before
    assert ask("/v1/completions", {"model": MODEL, "prompt": "a", "max_tokens": 1})[0] == 200
