from __future__ import annotations

import json
from pathlib import Path

import pytest

import tiny_llama
from vermilion.errors import ModelError, OptionError
from vermilion.llm.generate import StopText
from vermilion.llm.tokenizer import (
    ChatTemplate,
    FolderTokenizer,
    open_tokenizer,
    read_chat_template,
)

pytestmark = pytest.mark.needs("tokenizers", "jinja2")

HELLO = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> FolderTokenizer:
    folder = tmp_path_factory.mktemp("tokens")
    tiny_llama.write_tokenizer(folder, 320)
    return open_tokenizer(folder)


@pytest.mark.parametrize("text", ["plain words", "é", "你好", "a\n\tb", "👩‍🚀 there", ""])
def test_a_stream_gives_whole_letters_and_all_of_them(
    tokenizer: FolderTokenizer, text: str
) -> None:
    stream = tokenizer.create_stream()
    pieces = [stream.decode(token) for token in tokenizer.encode(text)]
    assert "".join(pieces) == text
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


def test_a_long_stream_keeps_no_more_than_it_needs(tokenizer: FolderTokenizer) -> None:
    stream = tokenizer.create_stream()
    for token in tokenizer.encode("word " * 500):
        stream.decode(token)
    assert len(stream._tokens) < 4


def test_options_are_checked(tokenizer: FolderTokenizer) -> None:
    assert not tokenizer.options.with_changes({"skip_special_tokens": "false"}).skip_special_tokens
    for wrong in ({"lower": "true"}, {"add_special_tokens": "maybe"}):
        with pytest.raises(OptionError, match="no option of a tokenizer"):
            tokenizer.options.with_changes(wrong)
    with pytest.raises(OptionError, match="no token `nothing`"):
        tokenizer.token_id("nothing")


def test_what_is_no_text(tokenizer: FolderTokenizer) -> None:
    """Bytes of a command line or of stdin that are no UTF-8 come as halves of letters."""
    with pytest.raises(OptionError, match="something at 2 that is no letter"):
        tokenizer.encode("a \udcff")


def test_a_text_is_neither_cut_nor_filled(tmp_path: Path) -> None:
    """Files say how texts were cut when the model was trained."""
    tiny_llama.write_tokenizer(tmp_path, 320)
    file = tmp_path / "tokenizer.json"
    about = json.loads(file.read_text())
    about["truncation"] = {
        "direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0,
    }  # fmt: skip
    about["padding"] = {
        "strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": None,
        "pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>",
    }  # fmt: skip
    file.write_text(json.dumps(about))
    found = open_tokenizer(tmp_path)
    text = "more words than four tokens"
    assert found.decode(found.encode(text)) == text


def test_what_is_added_before_a_text(tmp_path: Path) -> None:
    tiny_llama.write_tokenizer(tmp_path, 320)
    file = tmp_path / "tokenizer.json"
    about = json.loads(file.read_text())
    for before, after, wanted in (
        (["<s>"], [], (1,)),
        (["<s>", "<pad>"], [], (1, 0)),
        ([], ["</s>"], ()),
        (["<s>"], ["</s>"], (1,)),
    ):
        names = {"<pad>": 0, "<s>": 1, "</s>": 2}
        single = [
            *({"SpecialToken": {"id": one, "type_id": 0}} for one in before),
            {"Sequence": {"id": "A", "type_id": 0}},
            *({"SpecialToken": {"id": one, "type_id": 0}} for one in after),
        ]
        about["post_processor"] = {
            "type": "TemplateProcessing", "single": single, "pair": single,
            "special_tokens": {
                one: {"id": one, "ids": [names[one]], "tokens": [one]} for one in (*before, *after)
            },
        }  # fmt: skip
        file.write_text(json.dumps(about))
        assert open_tokenizer(tmp_path).added_before() == wanted


def test_a_missing_or_damaged_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no `tokenizer\.json`"):
        open_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text('{"model": 3}')
    with pytest.raises(ModelError, match="cannot be read"):
        open_tokenizer(tmp_path)


def template(folder: Path, **about: object) -> ChatTemplate:
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    return read_chat_template(folder)


def test_a_template_stands_in_a_file_or_in_the_configuration(tmp_path: Path) -> None:
    one = "{{ messages[0].content }}{{ eos_token }}"
    own = template(tmp_path, chat_template=one, eos_token={"content": "!"})
    assert own.render(HELLO) == "hello!"
    rows = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": one}]
    assert template(tmp_path, chat_template=rows, eos_token="?").render(HELLO) == "hello?"
    (tmp_path / "chat_template.jinja").write_text("of the file")
    assert template(tmp_path, chat_template=one).render(HELLO) == "of the file"


def test_what_templates_of_models_use(tmp_path: Path) -> None:
    source = (
        "{%- for m in messages %}\n"
        "    {%- if loop.index0 > 0 %}{% break %}{% endif %}\n"
        "{{ m | tojson }}{{ strftime_now('%Y') | length }}\n"
        "{%- endfor %}"
    )
    found = template(tmp_path, chat_template=source).render([*HELLO, *HELLO])
    assert found.strip() == '{"role": "user", "content": "hello"}4'


def test_marks_of_answers_change_nothing(tmp_path: Path) -> None:
    source = (
        "{% set x = 1 %}{% for m in messages %}\n"
        "    {% generation %}\n"
        "{% set x = 2 %}{{ m.content }}{{ x }}\n"
        "    {% endgeneration %}\n"
        "{% endfor %}{{ x }}"
    )
    assert template(tmp_path, chat_template=source).render(HELLO) == "hello2\n1"


def test_json_is_written_as_a_template_asks(tmp_path: Path) -> None:
    source = "{{ messages[0] | tojson(separators=(',', ':'), sort_keys=true, ensure_ascii=true) }}"
    given = [{"role": "user", "content": "é"}]
    found = template(tmp_path, chat_template=source).render(given)
    assert found == '{"content":"\\u00e9","role":"user"}'


def test_a_template_of_its_own_for_tools(tmp_path: Path) -> None:
    rows = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    own = template(tmp_path, chat_template=rows)
    assert own.render(HELLO) == "plain"
    assert own.render(HELLO, tools=[{"name": "t"}]) == "tools"
    assert own.with_source("given").render(HELLO, tools=[{"name": "t"}]) == "given"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{{ cycler() }}", "RuntimeError"),
        ("{{ 'a' * 10000000000 }}", "10,000,000,000 parts"),
        ("{{ 10000000000 * [1] }}", "10,000,000,000 parts"),
        ("{{ 9 ** 99999999 }}", "parts"),
        ("{{ '%1000000000d' % 1 }}", "too wide"),
        ("{{ 'a'.ljust(1000000000000) }}", "unsafe"),
        ("{{ 'a' | center(1000000000000) }}", "No filter"),
        ("{{ lipsum(1000000) }}", "undefined"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", "fails"),
        ("{{ messages.append(1) }}", "fails"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "fails"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_one_error(
    tmp_path: Path, source: str, words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        template(tmp_path, chat_template=source).render(HELLO)


def test_without_a_template_there_is_no_conversation(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no chat template"):
        template(tmp_path).render(HELLO)


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["one", " two", " three"], "one two three"),
        (["one", " S", "TOP", " three"], "one "),
        (["one ST", "ILL"], "one STILL"),
        (["a#", "#", "b"], "a"),
        (["a#", "b##c"], "a#b"),
        (["one ST"], "one ST"),
        (["S", "STOP"], "S"),
    ],
)
def test_a_stop_text_ends_it_wherever_it_is_cut(pieces: list[str], text: str) -> None:
    stop = StopText(["STOP", "##"])
    found = "".join(stop.take(piece) for piece in pieces) + stop.rest()
    assert found == text


def test_without_stop_texts_nothing_is_held_back() -> None:
    stop = StopText([])
    assert [stop.take(piece) for piece in ("a", "b")] == ["a", "b"]
