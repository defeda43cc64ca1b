from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from models import small_cnn
from vermilion.api import compile_model
from vermilion.errors import OptionError
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.placement_line import bundle_line, placement_line, told


def rows(*left: tuple[str, str], native: int = 0) -> list[dict[str, str]]:
    """Return rows of a report: some native, the others left to ONNX Runtime for these reasons."""
    reasons = [{"backend": "ort", "reason": reason, "hint": hint} for reason, hint in left]
    return [{"backend": "native", "reason": "", "hint": ""}] * native + reasons


def test_all_native() -> None:
    nodes = rows(native=3)
    assert placement_line(nodes, "zen4", on_cpu=True) == "3 of 3 operators native"
    found = placement_line(nodes, "gfx942", on_cpu=False, modelled=True)
    assert found == "3 of 3 operators native on gfx942 (modelled)"


def test_what_is_left_has_the_reason_that_most_of_it_has() -> None:
    nodes = rows(
        ("odd", "leave it out"), ("open", "`--dim n=1`"), ("open", "`--dim n=1`"), native=1
    )
    assert placement_line(nodes, "cpu", on_cpu=True) == (
        "1 of 4 operators native; 3 in ONNX Runtime: open (`--dim n=1`); "
        "1 of them for 1 other reason"
    )
    assert placement_line(rows(("", "")), "cpu", on_cpu=True) == (
        "0 of 1 operators native; 1 in ONNX Runtime"
    )


def test_what_is_warned_of() -> None:
    nothing = "0 of 4 operators native; 4 in ONNX Runtime: open"
    assert told((), nothing) == (nothing,)
    assert told(("bind it",), nothing) == ("bind it",)
    assert told((), "10 of 10 operators native") == ()
    assert told((), "0 of 0 operators native") == ()


@pytest.mark.parametrize(
    ("target", "dims", "words"),
    [
        ("strix", {"n": 1}, "8 of 8 operators native on strix (modelled)"),
        ("strix", {}, "0 of 8 operators native on strix; 8 in ONNX Runtime: strix needs fixed"),
        ("cpu", {"n": 1}, "8 of 8 operators native"),
    ],
)
def test_a_compiled_model_says_the_same_as_its_bundle(
    target: str, dims: dict[str, int], words: str, tmp_path: Path
) -> None:
    compiled = compile_model(small_cnn(batch="n"), target=target, dims=dims, cache_dir=tmp_path)
    assert compiled.placement.startswith(words)
    assert compiled.placement.endswith(words) or "`--dim n=1`" in compiled.placement
    assert bundle_line(open_artifact(compiled.artifact)) == compiled.placement
    session = compiled.session()
    assert session.placement == compiled.placement
    session.close()
    with pytest.raises(OptionError, match="closed"):
        session.placement  # noqa: B018 -- asked for, for its error


def test_a_graph_in_memory_is_as_good(tmp_path: Path) -> None:
    model: ir.Model = small_cnn()
    assert compile_model(model, cache_dir=tmp_path).placement == "8 of 8 operators native"
