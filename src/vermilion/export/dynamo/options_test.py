from __future__ import annotations

import pytest

from vermilion.errors import OptionError
from vermilion.export.dynamo.options import TorchOptions, read_options


def test_options_are_read_and_those_that_change_the_program_are_in_its_key() -> None:
    assert read_options(None, None) == TorchOptions()
    found = read_options(None, {"precision": "bf16", "threads": 1, "cache_dir": "here"})
    assert found == TorchOptions("bf16", threads=1, cache_dir="here")
    assert found.key() == {"precision": "bf16", "winograd": True}


@pytest.mark.parametrize(
    ("mode", "given", "message", "hint"),
    [
        ("max-autotune", {}, "no mode `max-autotune`", "options="),
        (None, {"precison": "bf16"}, "no option `precison`", "did you mean `precision`"),
        (None, {"epilogue_fusion": True}, "no option `epilogue_fusion`", "there are precision,"),
        (None, {"precision": "int8"}, "unknown precision `int8`", "auto, fp32, bf16"),
        (None, {"threads": -1}, "-1 threads", "0 means"),
    ],
)
def test_what_is_none_is_wrong_use(
    mode: str | None, given: dict[str, object], message: str, hint: str
) -> None:
    with pytest.raises(OptionError, match=message) as caught:
        read_options(mode, given)
    assert hint in caught.value.hint
