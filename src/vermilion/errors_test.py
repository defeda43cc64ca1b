from __future__ import annotations

from vermilion.errors import ModelError, OptionError


def test_text_is_what_where_and_hint() -> None:
    error = ModelError("it is wrong", where="m.onnx, node `c`", hint="fix it")
    assert str(error) == "it is wrong (m.onnx, node `c`)\nhint: fix it"
    assert (ModelError.exit_code, OptionError.exit_code) == (1, 2)


def test_names_cannot_write_on_the_terminal() -> None:
    error = ModelError("`\x1b[2J\u202eabc\n`", where="a\r\x07b", hint="c\u2028d")
    assert error.message == r"`\x1b[2J\u202eabc\n`"
    assert error.where == r"a\r\x07b"
    assert error.hint == r"c\u2028d"


def test_letters_of_every_script_stay() -> None:
    assert ModelError("`größe 模型 → ×`").message == "`größe 模型 → ×`"


def test_long_names_lose_their_middle() -> None:
    message = ModelError(f"the name `{'n' * 1_000_000}` is given twice").message
    assert message.startswith("the name `nnn")
    assert message.endswith("nnn` is given twice")
    assert "characters left out" in message
    assert len(message) < 1300
