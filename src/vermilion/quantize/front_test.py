"""The Pareto front: each model costs more and keeps more than the one before it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from commands import Command
from models import small_cnn
from vermilion.errors import OptionError
from vermilion.quantize.front import Point, find_front, undominated
from vermilion.quantize.options import Options
from vermilion.quantize.quantize import quantize_model


def samples(count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [
        {"input": random.standard_normal((1, 3, 16, 16), dtype=np.float32)} for _ in range(count)
    ]


def point(cost: float, sqnr_db: float, drop: float = 0.0, fault: str = "") -> Point:
    return Point("", Options(), cost, sqnr_db, drop, 1.0, 0.0, fault)


def test_what_is_dominated_is_left_out() -> None:
    rows = [
        point(2, 30),
        point(1, 20),
        point(1, 25),
        point(3, 28),
        point(4, 40),
        point(1, 99, 0, "x"),
    ]
    assert [(p.cost, p.sqnr_db) for p in undominated(rows)] == [(1, 25), (2, 30), (4, 40)]
    by_metric = [point(1, 30, 0.2), point(2, 20, 0.1)]
    assert undominated(by_metric) == by_metric


@pytest.mark.parametrize("scheme", ["a8w8", "xint8"])
def test_a_front(scheme: str) -> None:
    model = small_cnn()
    front = find_front(model, samples(12), Options(scheme=scheme), minutes=5.0)
    costs = [p.cost for p in front.points]
    assert costs[0] == 1.0
    assert costs == sorted(costs)
    assert len(costs) >= {"a8w8": 3, "xint8": 2}[scheme]
    decibels = [p.sqnr_db for p in front.points]
    assert decibels == sorted(decibels)
    assert decibels[-1] > decibels[0] + 9.0
    assert front.held_out == 3
    last = front.points[-1].options
    done = quantize_model(model, samples(12), **last.as_json())  # type: ignore[arg-type]
    assert done.outputs[0].sqnr_db > decibels[0] + 6.0


def test_a_metric_counts_first() -> None:
    from vermilion.quantize.guard import Promise

    front = find_front(
        small_cnn(),
        samples(16),
        Options(scheme="a8w8"),
        minutes=5.0,
        promise=Promise(0.0, None, "top1"),
    )
    assert front.metric == "top1"
    drops = [p.drop for p in front.points]
    assert drops == sorted(drops, reverse=True)


def test_it_needs_samples_and_time() -> None:
    with pytest.raises(OptionError, match="samples to hold out"):
        find_front(small_cnn(), samples(2), Options(scheme="a8w8"))
    with pytest.raises(OptionError, match="finds nothing"):
        find_front(small_cnn(), samples(8), Options(scheme="a8w8"), minutes=0.0)


def test_the_command_and_picking_from_it(vermilion: Command, tmp_path: Path) -> None:
    ir.save(small_cnn(), tmp_path / "m.onnx")
    np.savez(tmp_path / "s.npz", input=np.concatenate([s["input"] for s in samples(8)]))
    words = ("quantize", tmp_path / "m.onnx", "--calib", tmp_path / "s.npz", "--scheme", "a8w8")
    front = tmp_path / "front.json"
    done = vermilion(*words, "-o", tmp_path / "q.onnx", "--pareto", front, "--minutes", "5")
    assert done.code == 0
    assert "point 0 was saved" in done.out
    picked = vermilion(
        "quantize", tmp_path / "m.onnx", "--calib", tmp_path / "s.npz", "--recipe", front,
        "--point", "1", "-o", tmp_path / "one.onnx", "--json",
    )  # fmt: skip
    assert picked.code == 0
    assert picked.data["recipe"] != Options(scheme="a8w8").as_json()
    written = front.read_bytes()
    wrong = vermilion(*words, "-o", tmp_path / "q.onnx", "--pareto", front, "--min-sqnr", "9")
    assert (wrong.code, "goes with no promise" in wrong.err) == (2, True)
    assert front.read_bytes() == written


def test_places_are_checked_before_the_search(vermilion: Command, tmp_path: Path) -> None:
    ir.save(small_cnn(), tmp_path / "m.onnx")
    (tmp_path / "file").write_text("as it was")
    (tmp_path / "q.onnx").write_text("as it was")
    words = ("quantize", tmp_path / "m.onnx", "--calib", "random", "-o", tmp_path / "q.onnx")
    for option in ("--pareto", "--report"):
        done = vermilion(*words, option, tmp_path / "file" / "deep")
        assert (done.code, "cannot be written" in done.err) == (1, True)
        done = vermilion(*words, option, tmp_path / "q.onnx")
        assert (done.code, "have one name" in done.err) == (2, True)
    assert (tmp_path / "q.onnx").read_text() == "as it was"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file", "m.onnx", "q.onnx"]
