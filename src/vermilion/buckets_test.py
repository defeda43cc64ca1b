from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path

import onnx
import pytest

from commands import command_line
from vermilion.buckets import MAX_PRICED, padding_of, propose_buckets
from vermilion.errors import OptionError

TEXT = """<ir_version: 8, opset_import: ["" : 17]>
net (float[batch, length, 8] x, float[batch, length] mask) => (float[batch, length, 16] y) {
    a = MatMul (x, w)
    axes = Constant <value_ints=[2]> ()
    m = Unsqueeze (mask, axes)
    y = Mul (a, m)
}"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    proto = onnx.parser.parse_model(TEXT)
    weight = onnx.helper.make_tensor("w", onnx.TensorProto.FLOAT, (8, 16), [0.1] * 128)
    proto.graph.initializer.append(weight)
    onnx.save(proto, tmp_path / "m.onnx")
    return tmp_path / "m.onnx"


def trace(folder: Path, requests: Sequence[tuple[int, int]]) -> Path:
    lines = [json.dumps({"x": [b, n, 8], "mask": [b, n]}) for b, n in requests]
    (folder / "trace.jsonl").write_text("\n".join(lines) + "\n")
    return folder / "trace.jsonl"


def test_few_buckets_that_lose_the_least(model: Path, tmp_path: Path) -> None:
    requests = [
        (1, n)
        for n, count in ((16, 50), (20, 30), (60, 10), (64, 5), (512, 1))
        for _ in range(count)
    ]
    found = propose_buckets(model, trace(tmp_path, requests), most=3)
    assert [b.sizes["length"] for b in found.chosen] == [20, 64, 512]
    assert [b.requests for b in found.chosen] == [80, 15, 1]
    paddings = [padding_of(option) for option in found.options]
    assert paddings == sorted(paddings, reverse=True)
    # Work is in proportion to the length here: 80·20 + 15·64 + 512 against what was asked for.
    asked = sum(n for _, n in requests)
    assert padding_of(found.chosen) == pytest.approx(1 - asked / (80 * 20 + 15 * 64 + 512))
    assert found.chosen[-1].padding == 0


def test_no_other_choice_is_better(model: Path, tmp_path: Path) -> None:
    lengths = (3, 5, 8, 13, 21, 34, 55, 89)
    requests = [(1, n) for at, n in enumerate(lengths) for _ in range(1 + at * 7 % 5)]
    found = propose_buckets(model, trace(tmp_path, requests), most=3)

    def spent(chosen: Sequence[int]) -> int:
        return sum(min(c for c in chosen if c >= n) for _, n in requests)

    best = min(spent([*two, 89]) for two in combinations(lengths[:-1], 2))
    assert spent([b.sizes["length"] for b in found.chosen]) == best


def test_two_dimensions_and_many_sizes(model: Path, tmp_path: Path) -> None:
    requests = [(1 + at % 3, 1 + at * 37 % 300) for at in range(200)]
    found = propose_buckets(model, trace(tmp_path, requests), most=4)
    assert found.names == ("batch", "length")
    assert found.requests == 200
    assert found.distinct > MAX_PRICED
    assert found.steps["length"] > 1, "so many sizes are rounded up"
    assert sum(bucket.requests for bucket in found.chosen) == 200
    assert padding_of(found.chosen) < padding_of(found.options[0]) < 1


def test_more_buckets_than_sizes_are_not_proposed(model: Path, tmp_path: Path) -> None:
    found = propose_buckets(model, trace(tmp_path, [(1, 4), (1, 8)]), most=9)
    assert [b.sizes for b in found.chosen] == [
        {"batch": 1, "length": 4},
        {"batch": 1, "length": 8},
    ]
    assert padding_of(found.chosen) == 0


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "this is no JSON"),
        ("[1]", "no JSON object"),
        ('{"x": [1, 4, 8]}', "`mask` needs 2 sizes"),
        ('{"x": [1, 4], "mask": [1, 4]}', "`x` needs 3 sizes"),
        ('{"x": [1, 4, 9], "mask": [1, 4]}', "`x` has 9, the model has 8"),
        ('{"x": [1, 4, 8], "mask": [1, 5]}', "`mask` has 5, `length` is 4 elsewhere"),
        ('{"x": [1, true, 8], "mask": [1, 1]}', "`x` needs 3 sizes"),
        ("", "holds no request"),
    ],
)
def test_a_trace_that_does_not_fit(model: Path, tmp_path: Path, line: str, words: str) -> None:
    (tmp_path / "t.jsonl").write_text(line + "\n")
    with pytest.raises(OptionError) as caught:
        propose_buckets(model, tmp_path / "t.jsonl")
    assert words in str(caught.value)


def test_a_model_with_nothing_open(model: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="fixed already"):
        propose_buckets(model, trace(tmp_path, [(1, 4)]), dims={"batch": 1, "length": 4})


def test_the_command(
    model: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vermilion = command_line(capfd, monkeypatch, tmp_path / "cache")
    file = trace(tmp_path, [(1, 4), (1, 8), (1, 8)])
    done = vermilion("inspect", model, "--shapes", file, "--buckets", "1")
    assert done.code == 0, done.err
    assert "3 requests of 2 different sizes" in done.words
    assert "vermilion compile m.onnx --dim batch=1 --dim length=8" in done.words
    data = vermilion("inspect", model, "--shapes", file, "--json").data
    assert [row["sizes"]["length"] for row in data["buckets"]] == [4, 8]
    assert data["by_number"][-1] == {"buckets": 2, "padding": 0.0}
