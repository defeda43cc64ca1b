"""The page's data, without a browser: what is in it, how large, and that all of it stays text."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import onnx_ir as ir
import pytest

import models
from small_decoders import decoder_folder
from vermilion import compile_model
from vermilion.errors import OptionError
from vermilion.hardware.targets.find import all_targets
from vermilion.inspection import inspect_model
from vermilion.view.build import build_view
from vermilion.view.fold_test import long_quantized
from vermilion.view.page import view_page

HOSTILE = (
    "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "\u202egnp.txt\u2066{{constructor}}",
    "a" * 100_000,
    "javascript:alert(1)//<!--",
)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "quantized.onnx"
    ir.save(long_quantized(12), path)
    return path


@pytest.fixture(scope="module")
def data(quantized: Path) -> dict[str, Any]:
    return build_view([quantized], target="strix").data


def saved(path: Path, name: str) -> Callable[[ir.Model], Path]:
    def save(model: ir.Model) -> Path:
        ir.save(model, path / name)
        return path / name

    return save


def hostile_model() -> ir.Model:
    model = models.small_cnn()
    for node, name in zip(model.graph, HOSTILE, strict=False):
        node.name = name
        node.outputs[0].name = f"{name}#"
    model.graph.inputs[0].name = HOSTILE[1]
    return model


def test_every_reason_and_hint_of_inspect_is_in_it(quantized: Path, data: dict[str, Any]) -> None:
    (model,) = data["models"]
    rows = {row["name"]: row for row in model["targets"]}
    names = [target.name for target in all_targets() if target.kind == "npu"]
    assert set(names) < set(rows)
    assert model["targets"][data["target"]]["name"] == "strix"
    for name in names:
        found = inspect_model(quantized, target=name).as_json()
        places = [model["places"][at] for at in rows[name]["at"]]
        assert isinstance(found["nodes"], list)
        for mine, theirs in zip(places, found["nodes"], strict=True):
            for key in ("reason", "hint", "device", "supported"):
                assert mine[key] == theirs[key]
        summary = found["summary"]
        assert isinstance(summary, dict)
        assert rows[name]["summary"] == {key: summary[key] for key in rows[name]["summary"]}
        assert rows[name]["ms"] == found["predicted_ms"]
        assert rows[name]["interval"] == found["predicted_interval_ms"]
        assert rows[name]["no_ms"] == found["predicted_reason"]
        assert rows[name]["cautions"] == found["cautions"]


def test_a_processor_has_kernels_and_a_memory_plan(tmp_path: Path) -> None:
    data = build_view([saved(tmp_path, "m.onnx")(models.mobilenet())]).data
    (part,) = data["parts"]
    assert part["arena_bytes"] > 0
    steps = len(part["steps"])
    for low, high, first, last, _ in part["lives"]:
        assert 0 <= low < high <= part["arena_bytes"]
        assert 0 <= first <= last < steps
    # Nothing lies in one place at one time.
    for n, (low, high, first, last, _) in enumerate(part["lives"]):
        for other in part["lives"][:n]:
            assert low >= other[1] or other[0] >= high or last < other[2] or other[3] < first
    nodes = data["models"][0]["graph"]["nodes"]
    without = [node["o"] for node, k in zip(nodes, data["kernel_of"], strict=True) if k is None]
    assert without == ["Flatten"]  # which moves nothing
    assert {step["kernel"] for step in part["steps"]} == set(data["kernels"])


def test_a_bundle_shows_what_it_was_compiled_for(quantized: Path, tmp_path: Path) -> None:
    compiled = compile_model(
        quantized, target="strix", cache_dir=tmp_path / "cache", output=tmp_path / "m.rai"
    )
    for bundle in (tmp_path / "m.rai", compiled.artifact):
        data = build_view([bundle]).data
        row = data["models"][0]["targets"][0]
        assert (row["name"], row["is"]) == ("strix (compiled)", "modelled")
        assert row["summary"]["offloaded_operators"] == compiled.report.summary.offloaded_operators
        places = [data["models"][0]["places"][at] for at in row["at"]]
        assert [place["reason"] for place in places] == [n["reason"] for n in compiled.report.nodes]


def test_a_bundle_for_this_processor_shows_its_assembly(tmp_path: Path) -> None:
    model = saved(tmp_path, "m.onnx")(models.small_cnn())
    compiled = compile_model(model, cache_dir=tmp_path / "cache", dump=tmp_path / "dump")
    data = build_view([compiled.artifact], dump=tmp_path / "dump").data
    assert data["models"][0]["targets"][0]["is"] == "measured"
    kernels = data["kernels"].values()
    assert all(kernel["facts"] for kernel in kernels)
    assert all(any("ret" in line for line in kernel["assembly"]) for kernel in kernels)
    with pytest.raises(OptionError, match="no kernel of this model"):
        build_view([model], dump=tmp_path / "cache")


def test_a_dump_beside_what_has_no_kernels_is_told_to_go(tmp_path: Path) -> None:
    write = saved(tmp_path, "a.onnx")
    a, b = write(models.small_cnn(bn=True)), saved(tmp_path, "b.onnx")(models.small_cnn())
    compile_model(b, cache_dir=tmp_path / "cache", dump=tmp_path / "dump")
    with pytest.raises(OptionError, match="shows no kernels") as refused:
        build_view([a, b], dump=tmp_path / "dump")
    assert "leave `--dump` out" in refused.value.hint


def test_a_program_too_long_to_lower_is_said_to_have_no_kernels(tmp_path: Path) -> None:
    data = build_view([saved(tmp_path, "long.onnx")(long_quantized(400))]).data
    assert not data["parts"]
    assert any("this one has 1,603" in note for note in data["notes"])


def test_passes_say_what_became_of_the_file(tmp_path: Path) -> None:
    data = build_view([saved(tmp_path, "m.onnx")(models.small_cnn(bn=True))]).data
    assert [op for op, _ in data["gone"]] == ["BatchNormalization"] * 2
    assert {row["name"] for row in data["passes"] if row["fired"]} >= {"fold-batch-norm"}


def test_two_models_are_compared_as_their_files_are(tmp_path: Path) -> None:
    a = saved(tmp_path, "a.onnx")(models.small_cnn(bn=True))
    b = saved(tmp_path, "b.onnx")(models.small_cnn())
    view = build_view([a, b])
    assert view.changes is not None
    diff = view.data["diff"]
    assert diff["counts"] == {"fused": 2}
    assert [len(status) for status in diff["status"]] == [10, 8]
    first = diff["changes"][0]
    nodes = view.data["models"][0]["graph"]["nodes"]
    assert [nodes[n]["o"] for n in first["a"]] == ["Conv", "BatchNormalization"]
    # Shapes are worked out for the map, and change nothing of what is compared.
    tensors = view.data["models"][0]["graph"]["tensors"]
    assert all(tensors[t]["s"] for node in nodes for t in node["u"])


def test_three_models_are_too_many(quantized: Path) -> None:
    with pytest.raises(OptionError, match="3 models are too many"):
        build_view([quantized] * 3)


def test_a_folder_has_to_say_which_model(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="no model"):
        build_view([tmp_path])
    saved(tmp_path, "a.onnx")(models.small_cnn())
    assert build_view([tmp_path]).data["title"] == "a.onnx"
    saved(tmp_path, "b.onnx")(models.small_cnn())
    with pytest.raises(OptionError, match="2 ONNX files"):
        build_view([tmp_path])


def test_a_language_model_is_a_folder(tmp_path: Path) -> None:
    data = build_view([decoder_folder(tmp_path / "decoder")]).data
    facts = {what: words for what, words, _ in data["models"][0]["facts"]}
    assert facts["language model"]
    assert int(facts["num hidden layers"]) > 0
    nodes = data["models"][0]["graph"]["nodes"]
    assert "GroupQueryAttention" in {node["o"] for node in nodes}


def write(path: Path, data: object) -> Path:
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_saved_results_lie_on_the_map(tmp_path: Path) -> None:
    model = saved(tmp_path, "m.onnx")(models.small_cnn())
    names = [node.name for node in models.small_cnn().graph]
    step = {"kind": "conv", "device": "CPU", "ms": 2.0, "share": 1.0, "gops_per_s": 3.0, "steps": 1}
    engine = {"engine": "vermilion", "precision": "fp32", "version": "1", "run_ms": 2.0, "runs": 3,
              "by_step": [{"name": names[1], **step}]}  # fmt: skip
    cases = [{"model": "m", "engines": [engine]}]
    profile = write(tmp_path / "p.json", {"verb": "bench", "ok": True, "profiles": cases})
    layers = [{"name": f"{names[0]}_output", "op_type": "Conv", "sqnr_db": 31.5}]
    compared = write(tmp_path / "c.json", {"verb": "compare", "ok": True, "outputs": [],
                                           "layers": layers, "sides": []})  # fmt: skip
    trace = write(tmp_path / "t.json", {"traceEvents": [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "m: vermilion@fp32 1"}},
        {"name": names[1], "cat": "conv", "ph": "X", "pid": 1, "tid": 1, "ts": 0.5, "dur": 2.0},
    ]})  # fmt: skip
    data = build_view([model, profile, compared, trace]).data
    (found,) = data["profiles"]
    # The convolution before it was fused into the step that has the activation's name.
    assert found["of_node"][:3] == [0, 0, None]
    assert found["members"] == [[0, 1]]
    assert found["timeline"][0]["us"] == 2.0
    assert data["errors"][0]["by_node"][:2] == [31.5, None]


def test_results_alone_make_a_page(quantized: Path, tmp_path: Path) -> None:
    found = inspect_model(quantized, target="strix").as_json()
    found["model"] = "/elsewhere/gone.onnx"
    data = build_view([write(tmp_path / "i.json", {"verb": "inspect", "ok": True, **found})]).data
    (model,) = data["models"]
    assert len(model["graph"]["nodes"]) == len(found["nodes"])  # type: ignore[arg-type]
    reasons = {place["reason"] for place in model["places"]}
    assert reasons == {node["reason"] for node in found["nodes"]}  # type: ignore[attr-defined]
    # Where the model is still there, it is shown with its edges.
    found["model"] = str(quantized)
    data = build_view([write(tmp_path / "i.json", {"verb": "inspect", "ok": True, **found})]).data
    assert data["models"][0]["graph"]["tensors"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("{}", "no saved result"),
        ('{"verb": "hello"}', "no saved result"),
        ('{"verb": "bench", "ok": true, "results": []}', "has no profile"),
        ('{"verb": "inspect", "ok": false, "error": {}}', "is an error"),
        ("{" * 3000, "not JSON"),
    ],
)
def test_what_is_no_result_is_told(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text(text)
    with pytest.raises(OptionError, match=message):
        build_view([tmp_path / "r.json"])


@pytest.mark.parametrize(
    "result",
    [
        {"verb": "inspect", "nodes": [{"name": 3}, 7, None], "target": ["x"], "summary": 5},
        {"verb": "bench", "profiles": [{"engines": [{"by_step": [{"ms": "a"}, {}]}, 3]}, []]},
        {"verb": "compare", "layers": {"a": 1}, "outputs": [[]], "sides": [{"latency_ms": 3}]},
        {"verb": "quantize", "layers": [{"sqnr_db": 1e999}], "ladder": [{"drop": []}]},
    ],
)
def test_a_result_of_anybody_is_read_without_trust(
    result: dict[str, object], tmp_path: Path
) -> None:
    path = write(tmp_path / "r.json", {"ok": True, **result})
    assert view_page(build_view([path]).data).startswith("<!doctype html>")


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    proto = ir.to_proto(hostile_model())
    onnx.save(proto, tmp_path / "hostile.onnx")
    page = view_page(build_view([tmp_path / "hostile.onnx"]).data)
    assert len(page) < 400_000  # names of 100 kB are cut
    body = page.partition('id="data">')[2].partition("</script>")[0]
    assert not re.search("[<>&]", body)
    nodes = json.loads(body)["models"][0]["graph"]["nodes"]
    assert nodes[0]["n"] == HOSTILE[0]
    assert page.count("<script") == 2


def test_the_policy_names_exactly_what_is_in_the_page(data: dict[str, Any]) -> None:
    page = view_page(data)
    policy = page.partition('Content-Security-Policy" content="')[2].partition('"')[0]
    inline = {"style": re.findall("<style>(.*?)</style>", page, re.DOTALL),
              "script": re.findall("<script>(.*?)</script>", page, re.DOTALL)}  # fmt: skip
    for kind, texts in inline.items():
        (text,) = texts
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none'; ")
    assert not re.search(r'\sstyle="|\son[a-z]+="|src=|href="http', page.partition("<script>")[0])


def test_pages_are_small(data: dict[str, Any]) -> None:
    assert len(view_page(data)) < 250_000


@pytest.mark.parametrize(
    ("layers", "nodes", "most_bytes"),
    [(200, 1002, 1_000_000), pytest.param(1000, 5002, 5_000_000, marks=pytest.mark.long)],
)
def test_pages_of_thousands_of_nodes(
    layers: int, nodes: int, most_bytes: int, tmp_path: Path
) -> None:
    model = long_quantized(layers)
    assert len(model.graph) == nodes
    assert len(view_page(build_view([saved(tmp_path, "long.onnx")(model)]).data)) < most_bytes
