"""`vermilion.genai` beside onnxruntime-genai: the same script, the same sequences.

Where onnxruntime-genai is not installed, what its 0.18.0 gave is recorded below.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiny_llama
import vermilion.genai as ours
from vermilion.errors import ModelError, OptionError, UnsupportedError

pytestmark = pytest.mark.needs("tokenizers", "jinja2")

PROMPT = np.arange(20, 30, dtype=np.int32)

# The sample of onnxruntime-genai's pages, with the model's folder and the prompt as parameters.
SCRIPT = """
model = og.Model(folder)
tokenizer = og.Tokenizer(model)
params = og.GeneratorParams(model)
params.set_search_options(max_length=48)

input_tokens = tokenizer.encode(prompt)
generator = og.Generator(model, params)
generator.append_tokens(input_tokens)

while not generator.is_done():
    generator.generate_next_token()

output = tokenizer.decode(generator.get_sequence(0))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama.write_folder(tmp_path_factory.mktemp("genai") / "tiny")


@pytest.fixture(scope="module")
def model(folder: Path) -> ours.Model:
    return ours.Model(folder, engine="onnxruntime")


def generator(og: Any, model: Any, **options: Any) -> Any:
    params = og.GeneratorParams(model)
    params.set_search_options(**options)
    return og.Generator(model, params)


def finish(one: Any) -> Any:
    while not one.is_done():
        one.generate_next_token()
    return one


def greedy(og: Any, model: Any) -> list[list[int]]:
    one = generator(og, model, max_length=18)
    one.append_tokens(PROMPT)
    return [finish(one).get_sequence(0).tolist()]


def beams(og: Any, model: Any) -> list[list[int]]:
    options = {"num_beams": 4, "num_return_sequences": 2, "length_penalty": 0.5}
    one = finish_with(og, model, max_length=18, early_stopping=False, **options)
    return [one.get_sequence(index).tolist() for index in range(2)]


def finish_with(og: Any, model: Any, **options: Any) -> Any:
    one = generator(og, model, **options)
    one.append_tokens(PROMPT)
    return finish(one)


def penalties(og: Any, model: Any) -> list[list[int]]:
    rows: list[dict[str, Any]] = [
        {"repetition_penalty": 1.6},
        {"no_repeat_ngram_size": 2},
        {"min_length": 20},
    ]
    return [finish_with(og, model, max_length=26, **row).get_sequence(0).tolist() for row in rows]


def ragged_batch(og: Any, model: Any) -> list[list[int]]:
    tokenizer = og.Tokenizer(model)
    one = generator(og, model, batch_size=2, max_length=20)
    tokens = tokenizer.encode_batch(["Hello", "Hi there, you"])
    one.append_tokens(tokens)
    finish(one)
    return [*tokens.as_numpy().tolist(), *(one.get_sequence(i).tolist() for i in range(2))]


def rewound(og: Any, model: Any) -> list[list[int]]:
    one = finish_with(og, model, max_length=16)
    one.rewind_to(12)
    held = one.get_sequence(0).tolist()
    one.generate_next_token()
    again = one.get_sequence(0).tolist()
    one.rewind_to(0)
    one.append_tokens(PROMPT[:4])
    return [held, again, finish(one).get_sequence(0).tolist()]


def chosen_logits(og: Any, model: Any) -> list[list[int]]:
    one = generator(og, model, max_length=12)
    one.append_tokens(PROMPT)
    logits = np.full_like(one.get_logits(), -1)
    logits[..., 33] = 5
    one.set_logits(logits)
    one.generate_next_token()
    return [list(logits.shape), one.get_next_tokens().tolist(), [one.token_count()]]


def ended(og: Any, model: Any) -> list[list[int]]:
    """The token that ends the text is the next token, and no part of the sequence."""
    one = generator(og, model, max_length=20)
    one.append_tokens(PROMPT)
    logits = np.full_like(one.get_logits(), -1)
    logits[..., tiny_llama.END] = 5
    one.set_logits(logits)
    one.generate_next_token()
    return [[int(one.is_done())], one.get_next_tokens().tolist(), one.get_sequence(0).tolist()]


CASES: dict[str, Callable[[Any, Any], list[list[int]]]] = {
    "greedy": greedy,
    "beams": beams,
    "penalties": penalties,
    "ragged batch": ragged_batch,
    "rewound": rewound,
    "chosen logits": chosen_logits,
    "ended": ended,
}

# What onnxruntime-genai 0.18.0 gave on these cases.
RECORDED: dict[str, list[list[int]]] = {
    "greedy": [[20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 133, 319, 199, 72, 199, 72, 199, 72]],
    "beams": [
        [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 133, 54, 112, 181, 113, 38, 45, 292],
        [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 133, 54, 112, 181, 113, 38, 45, 212],
    ],
    "penalties": [
        [
            20,
            21,
            22,
            23,
            24,
            25,
            26,
            27,
            28,
            29,
            133,
            319,
            199,
            72,
            112,
            181,
            76,
            214,
            156,
            69,
            268,
            94,
            230,
            292,
            125,
            231,
        ],
        [
            20,
            21,
            22,
            23,
            24,
            25,
            26,
            27,
            28,
            29,
            133,
            319,
            199,
            72,
            199,
            181,
            76,
            214,
            156,
            242,
            125,
            231,
            269,
            32,
            208,
            105,
        ],
        [
            20,
            21,
            22,
            23,
            24,
            25,
            26,
            27,
            28,
            29,
            133,
            319,
            199,
            72,
            199,
            72,
            199,
            72,
            199,
            72,
            199,
            181,
            76,
            303,
            164,
            317,
        ],
    ],
    "ragged batch": [
        [77, 106, 113, 113, 116, 0, 0, 0, 0, 0, 0, 0, 0],
        [77, 110, 37, 121, 109, 106, 119, 106, 49, 37, 126, 116, 122],
        [77, 106, 113, 113, 116, 0, 0, 0, 0, 0, 0, 0, 0, 109, 101, 274, 302, 129, 240, 242],
        [
            77,
            110,
            37,
            121,
            109,
            106,
            119,
            106,
            49,
            37,
            126,
            116,
            122,
            68,
            136,
            313,
            106,
            136,
            22,
            263,
        ],
    ],
    "rewound": [
        [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 133, 319],
        [20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 133, 319, 199, 72],
        [20, 21, 22, 23, 71, 7, 105, 186, 89, 175, 231, 25, 313, 106, 172, 111],
    ],
    "chosen logits": [[1, 1, 320], [33], [11]],
    "ended": [[1], [2], [20, 21, 22, 23, 24, 25, 26, 27, 28, 29]],
}


@pytest.mark.needs("onnxruntime_genai")
@pytest.mark.parametrize("prompt", ["Hello!", "1, 2, 3", "é 你"])
def test_the_sample_script_gives_the_same_text(folder: Path, prompt: str) -> None:
    import onnxruntime_genai

    texts, sequences = [], []
    for module in (onnxruntime_genai, ours):
        names: dict[str, Any] = {"og": module, "folder": str(folder), "prompt": prompt}
        exec(compile(SCRIPT, "sample", "exec"), names)
        texts.append(names["output"])
        sequences.append(names["generator"].get_sequence(0).tolist())
    assert sequences[1] == sequences[0]
    assert texts[1].startswith(prompt)
    # Random weights write bytes that are no text, at the first of which onnxruntime-genai stops.
    assert texts[1].startswith(texts[0].rstrip("\N{REPLACEMENT CHARACTER}"))


@pytest.mark.needs("onnxruntime_genai")
@pytest.mark.parametrize("case", CASES)
def test_sequences_are_those_of_onnxruntime_genai(
    case: str, folder: Path, model: ours.Model
) -> None:
    import onnxruntime_genai

    stock = CASES[case](onnxruntime_genai, onnxruntime_genai.Model(str(folder)))
    assert CASES[case](ours, model) == stock
    assert stock == RECORDED[case]


@pytest.mark.parametrize("case", CASES)
def test_sequences_are_those_recorded(case: str, model: ours.Model) -> None:
    assert CASES[case](ours, model) == RECORDED[case]


@pytest.mark.needs("avx2")
def test_generated_code_gives_the_same(folder: Path) -> None:
    native = ours.Model(folder, engine="native", prefill="fp32")
    assert native.engine_reason == ""
    for case in ("greedy", "rewound", "beams", "ragged batch"):
        assert CASES[case](ours, native) == RECORDED[case], case


@pytest.mark.needs("onnxruntime_genai")
def test_search_options_and_their_defaults_are_the_same(folder: Path, model: ours.Model) -> None:
    import onnxruntime_genai

    stock = onnxruntime_genai.GeneratorParams(onnxruntime_genai.Model(str(folder)))
    mine = ours.GeneratorParams(model)
    own = {"min_p": 0.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    assert mine.get_search_options() == stock.get_search_options() | own
    for one in (stock, mine):
        one.set_search_options(do_sample=True, top_p=0.5, min_length=3)
    wanted = stock.get_search_options() | own
    assert mine.get_search_options() == pytest.approx(wanted)


def test_more_text_after_generated_is_read_as_if_it_were_one(model: ours.Model) -> None:
    one = generator(ours, model, max_length=40)
    one.append_tokens(PROMPT)
    for _ in range(3):
        one.generate_next_token()
    whole = np.concatenate([one.get_sequence(0), [50, 51]])
    one.append_tokens([50, 51])
    fresh = generator(ours, model, max_length=40)
    fresh.append_tokens(whole)
    assert np.abs(one.get_logits() - fresh.get_logits()).max() < 1e-5


def test_sampling_is_the_same_for_the_same_seed(model: ours.Model) -> None:
    options = {"do_sample": True, "top_k": 30, "top_p": 0.95, "temperature": 1.3}
    texts = [
        finish_with(ours, model, max_length=40, random_seed=seed, **options)
        .get_sequence(0)
        .tolist()
        for seed in (1, 1, 2)
    ]
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_the_tokenizer_and_its_stream(model: ours.Model) -> None:
    tokenizer = ours.Tokenizer(model)
    text = "é 你 a"
    tokens = tokenizer.encode(text)
    assert tokens.dtype == np.int32
    assert tokenizer.decode(tokens) == text
    stream = tokenizer.create_stream()
    pieces = [stream.decode(token) for token in tokens]
    assert "".join(pieces) == text
    assert pieces[:2] == ["", "é"]
    assert tokenizer.encode("<s>a</s>").tolist()[::2] == [1, 2]
    assert tokenizer.decode([1, *tokenizer.encode("x"), 2]) == "x"
    tokenizer.update_options(skip_special_tokens="false")
    assert tokenizer.decode([1]) == "<s>"
    # A number alone and rows, as onnxruntime-genai takes them.
    assert tokenizer.decode(tokenizer.encode("a")[0]) == "a"
    assert tokenizer.decode(tokenizer.encode("ab")[None, :]) == "ab"
    assert tokenizer.decode_batch(tokenizer.encode_batch(["a", "b c"]))[1] == "b c"
    ids = (tokenizer.bos_token_id, tokenizer.eos_token_ids.tolist(), tokenizer.pad_token_id)
    assert ids == (1, [2], 0)
    assert tokenizer.to_token_id("</s>") == 2


def test_a_conversation_as_the_model_reads_it(model: ours.Model) -> None:
    tokenizer = ours.Tokenizer(model)
    messages = json.dumps([{"role": "user", "content": "hi"}])
    written = tokenizer.apply_chat_template(messages)
    assert written == "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    short = tokenizer.apply_chat_template(messages, add_generation_prompt=False)
    assert written == short + "<|im_start|>assistant\n"
    own = "{{ bos_token }}{{ tools[0].name }}"
    given = tokenizer.apply_chat_template(messages, template_str=own, tools='[{"name": "t"}]')
    assert given == "<s>t"
    with pytest.raises(OptionError, match="no JSON"):
        tokenizer.apply_chat_template("nonsense")


def test_a_configuration_may_be_changed_before_it_is_opened(folder: Path) -> None:
    config = ours.Config(folder)
    config.append_provider("MIGraphX")
    config.set_provider_option("MIGraphX", "device_id", "0")
    with pytest.raises(UnsupportedError, match="MIGraphX"):
        ours.Model(config)
    config.clear_providers()
    config.overlay('{"search": {"max_length": 33}}')
    model = ours.Model(config, engine="onnxruntime")
    assert ours.GeneratorParams(model).get_search_options()["max_length"] == 33
    assert (model.type, model.device_type) == ("llama", "CPU")
    assert model.engine.startswith("ONNX Runtime")
    assert json.loads((folder / "genai_config.json").read_text())["search"]["max_length"] == 256
    with pytest.raises(OptionError, match="no JSON"):
        config.overlay("{")
    config.overlay('{"model": {"decoder": {"session_options": []}}}')
    with pytest.raises(ModelError, match="session options"):
        config.append_provider("CPU")
    with pytest.raises(ModelError, match="session_options"):
        ours.Model(config)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"max_lenght": 4}, "no search option"),
        ({"max_length": 4000}, "the model's context 256"),
        ({"max_length": 4.5}, "whole number"),
        ({"do_sample": 1}, "true or false"),
        ({"do_sample": True, "top_p": 1.5}, "top_p"),
        ({"do_sample": True, "top_k": 5000}, "top_k"),
        ({"do_sample": True, "num_beams": 2}, "exclude"),
        ({"num_return_sequences": 3}, "num_return_sequences"),
        ({"batch_size": 0}, "batch_size"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
    ],
)
def test_options_that_make_no_sense(options: dict[str, Any], words: str, model: ours.Model) -> None:
    with pytest.raises(OptionError, match=words):
        generator(ours, model, **options)


def test_tokens_that_do_not_fit(model: ours.Model) -> None:
    one = generator(ours, model, max_length=8)
    with pytest.raises(OptionError, match="append_tokens"):
        one.generate_next_token()
    with pytest.raises(OptionError, match="0 tokens"):
        one.append_tokens([])
    with pytest.raises(OptionError, match="no token 320"):
        one.append_tokens([320])
    with pytest.raises(OptionError, match="over 8"):
        one.append_tokens(PROMPT)
    with pytest.raises(OptionError, match="over 256, the model's context"):
        generator(ours, model).append_tokens(np.ones(300, np.int32))
    one.append_tokens(PROMPT[:8])
    with pytest.raises(OptionError, match="greatest length"):
        one.generate_next_token()
    with pytest.raises(OptionError, match="no sequence 1"):
        one.get_sequence(1)
    with pytest.raises(OptionError, match="no going back"):
        one.rewind_to(9)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (lambda m: ours.Tokenizer(m).encode(5), "a text is a string, not int"),
        (lambda m: ours.Tokenizer(m).encode_batch(["a", None]), "not NoneType"),
        (lambda m: ours.Tokenizer(m).apply_chat_template([{"role": "user"}]), "as a string"),
        (lambda m: ours.Tokenizer("folder"), "a model is wanted, not str"),
        (lambda m: ours.Generator(m, None), "search options are wanted, not NoneType"),
        (lambda m: generator(ours, m).append_tokens("Hello"), "tokens are numbers, not str"),
        (lambda m: generator(ours, m).append_tokens([[1, 2], [3]]), "rows of one length"),
        (lambda m: generator(ours, m).set_logits("a"), "logits are numbers, not str"),
        (lambda m: ours.GeneratorParams(m).set_guidance("json_schema", {}), "not dict"),
    ],
)
def test_what_is_of_another_type(
    wrong: Callable[[ours.Model], object], words: str, model: ours.Model
) -> None:
    with pytest.raises(OptionError, match=words):
        wrong(model)


def test_a_folder_that_is_none_or_lacks_a_file(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no such folder"):
        ours.Model(tmp_path / "nothing")
    with pytest.raises(OptionError, match="this is a file"):
        ours.Model(folder / "model.onnx")
    with pytest.raises(OptionError, match="no folder of onnxruntime-genai"):
        ours.Model(tmp_path)
    copy = tiny_llama.write_folder(tmp_path / "copy")
    (copy / "model.onnx.data").unlink()
    with pytest.raises(ModelError, match=r"model\.onnx\.data"):
        ours.Model(copy)
    (copy / "model.onnx").unlink()
    with pytest.raises(ModelError, match="not in the folder"):
        ours.Model(copy)
    copy = tiny_llama.write_folder(tmp_path / "copy")
    (copy / "tokenizer.json").write_text("{}")
    with pytest.raises(ModelError, match="tokenizer cannot be read"):
        ours.Model(copy, engine="onnxruntime")
