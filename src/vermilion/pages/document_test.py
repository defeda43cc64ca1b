from __future__ import annotations

import base64
import hashlib
import json
import re

import pytest

from vermilion.pages.document import badge, data_block, policy, report_page, style, table


def test_the_policy_names_what_runs_and_lets_nothing_else_in() -> None:
    words = policy(["a {}"], ["run()"])
    digest = base64.b64encode(hashlib.sha256(b"run()").digest()).decode()
    assert f"script-src 'sha256-{digest}'" in words
    assert words.startswith("default-src 'none'; ")
    assert "require-trusted-types-for 'script'" in words
    assert not re.search(r"https?:|\*|unsafe|data:|'self'", words)
    assert "script-src" not in policy(["a {}"])


@pytest.mark.parametrize(
    "name",
    [
        "</script><script>alert(1)</script>",
        *("<!--<script>", "\u202egnp.exe", "a\u2028b\u2029c", "&amp;", "\ud800", '"\\', "\x00"),
    ],
)
def test_no_text_ends_a_data_block(name: str) -> None:
    block = data_block({"name": name, name: [name]})
    assert not re.search("[<>&\u2028\u2029]", block)
    assert block.encode("utf-8")
    read = json.loads(block)
    assert read["name"] == name.encode("utf-8", "replace").decode()


def test_what_is_no_number_is_no_data() -> None:
    with pytest.raises(ValueError, match="JSON"):
        data_block({"x": float("nan")})


def test_a_report_escapes_and_has_its_own_style() -> None:
    page = report_page("a <b>", "c & d", [badge("measured")])
    assert page.startswith("<!doctype html>")
    assert "<h1>a &lt;b&gt;</h1>" in page
    assert "c &amp; d" in page
    assert policy([style()]).partition("style-src ")[2].partition(";")[0] in page


def test_a_table_holds_text_and_marks_rows() -> None:
    text = table(("<layer>", "dB"), [("a&b", "1.0"), ("c", "2.0")], names=1, met={1})
    assert '<th scope="col">&lt;layer&gt;</th><th scope="col" class="n">dB</th>' in text
    assert '<tr><td>a&amp;b</td><td class="n">1.0</td></tr>' in text
    assert '<tr class=met><td>c</td><td class="n">2.0</td></tr>' in text
    assert 'aria-label="&lt;layer&gt;"' in text
