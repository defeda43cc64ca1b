"""Artifacts in the vendor's forms, written by us from their documentation."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from vermilion.backends.vitisai.found import Stack
from vermilion.errors import ArtifactError
from vermilion.runtime.summary import parse_summary
from vermilion.runtime.summary_test import (
    FORM_2026,
    OLD,
    PRELIMINARY,
    RESNET18,
    RESNET50_INT8,
)
from vermilion.runtime.vendor import read_vendor, why_not_reusable

CONTEXT = {
    "meta_def": [],
    "config": {
        "version": {
            "versionInfos": [
                {"packageName": "vaip", "commit": "744227ab", "version": ""},
                {"packageName": "voe", "commit": "", "version": "1.7.0"},
            ]
        }
    },
}
REPORT = {
    "deviceStat": [
        {"name": "all", "nodeNum": 49, "supportedOpType": []},
        {"name": "NPU", "nodeNum": 49, "supportedOpType": ["::Conv"]},
    ]
}
UNSUPPORTED = [
    {"name": "a", "op_type": "Cast", "reason": "Standalone tosa.cast is not supported [FE]"},
    {"node_name": "b", "op_type": "Cast", "Message": "Standalone tosa.cast is not supported [FE]"},
]
FILES = {
    "context.json": json.dumps(CONTEXT),
    "config.json": "{}",
    "vitisai_ep_report.json": json.dumps(REPORT),
    "final-vaiml-pass-summary.txt": RESNET18,
    "vaiml_par_0/0/partition-info.json": '{"runner_type": "aie", "num_aie_partitions": 1}',
    "vaiml_par_0/0/flexmlrt-hsi.json": "{}",
    "vaiml_partition_fe.flexml/fail_safe_summary.json": '{"offload_map": {"AIE": 100, "CPU": 0}}',
    "vaiml_partition_fe.flexml/aie_unsupported_original_ops_with_reasons.json": json.dumps(
        UNSUPPORTED
    ),
}
STACK = Stack("1.7.0", "1.23.0", "", "32.0.203.280", "", "strix")


def write(folder: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def tar(files: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text.encode())
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def check_contents(found) -> None:
    assert found.versions["voe"] == "1.7.0"
    assert found.parts == ("vaiml_par_0",)
    assert found.summary.offloaded_operators == 49
    assert found.report == {"NPU": 49}
    assert found.planned_percent == 100
    assert found.reasons == {"Cast: Standalone tosa.cast is not supported [FE]": 2}
    assert found.problems == ()


def test_a_cache_folder(tmp_path: Path) -> None:
    found = read_vendor(write(tmp_path / "key", FILES))
    assert found.kind == "cache folder"
    assert len(found.files) == len(FILES)
    check_contents(found)
    assert json.dumps(found.as_json())


def test_a_rai_file_of_either_kind(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.rai", "w") as archive:
        for name, text in FILES.items():
            archive.writestr(name, text)
    (tmp_path / "b.rai").write_bytes(tar(FILES))
    for name in ("a.rai", "b.rai"):
        found = read_vendor(tmp_path / name)
        assert found.kind == "rai file"
        check_contents(found)


def context_model(path: Path, content: bytes, **attributes: object) -> Path:
    fields = {
        "main_context": 1,
        "embed_mode": 1,
        "source": "VitisAIExecutionProvider",
        "partition_name": "vaiml_0",
        "version_of_voe": "1.7.0",
        "version_id_of_vaip": "744227ab",
        "ep_cache_context": content,
        **attributes,
    }
    node = onnx.helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft", **fields)
    kind = onnx.TensorProto.FLOAT
    graph = onnx.helper.make_graph(
        [node],
        "g",
        [onnx.helper.make_tensor_value_info("x", kind, [1])],
        [onnx.helper.make_tensor_value_info("y", kind, [1])],
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
    return path


def test_an_ep_context_model_with_the_cache_inside(tmp_path: Path) -> None:
    found = read_vendor(context_model(tmp_path / "m_ctx.onnx", tar(FILES)))
    assert found.kind == "EP-context model"
    assert found.versions["vaip"] == "744227ab"
    check_contents(found)


def test_an_ep_context_model_with_the_cache_beside_it(tmp_path: Path) -> None:
    beside = tmp_path / "m_ctx.onnx_VITISAI.bin"
    beside.write_bytes(tar(FILES))
    path = context_model(tmp_path / "m_ctx.onnx", beside.name.encode(), embed_mode=0)
    check_contents(read_vendor(path))
    beside.unlink()
    assert "not beside it" in read_vendor(path).problems[0]
    path = context_model(tmp_path / "n_ctx.onnx", b"../../etc/passwd", embed_mode=0)
    assert "not beside it" in read_vendor(path).problems[0]


def test_an_ep_context_of_another_provider_and_a_damaged_one(tmp_path: Path) -> None:
    path = context_model(tmp_path / "m.onnx", b"garbage", source="QNNExecutionProvider")
    problems = read_vendor(path).problems
    assert "written by `QNNExecutionProvider`" in problems[0]
    assert "no TAR" in problems[1]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"context.json": "{"}, "`context.json` is no JSON"),
        ({"final-vaiml-pass-summary.txt": RESNET18[:300]}, "no line `GOPs of the model`"),
        ({"vitisai_ep_report.json": '{"deviceStat"'}, "no `vitisai_ep_report"),
        (
            {
                "final-vaiml-pass-summary.txt": RESNET18.replace(
                    "offloaded by VAIML: 49 (100.000%)", "offloaded by VAIML: 0 (0.000%)"
                )
            },
            "planned 100 % on the NPU, and nothing was offloaded",
        ),
        ({"preliminary-vaiml-pass-summary.txt": PRELIMINARY}, "supports no operator"),
        (
            {"vitisai_ep_report.json": '{"deviceStat": [{"name": "CPU", "nodeNum": 49}]}'},
            "the provider's report has none there",
        ),
    ],
)
def test_damage_and_contradictions_are_named(
    change: dict[str, str], words: str, tmp_path: Path
) -> None:
    found = read_vendor(write(tmp_path / "key", {**FILES, **change}))
    assert any(words in problem for problem in found.problems), found.problems
    assert any("damaged" in reason for reason in why_not_reusable(found, STACK))


FORMS = {
    "resnet18": RESNET18,
    "resnet50-int8": RESNET50_INT8,
    "2026": FORM_2026,
    "preliminary": PRELIMINARY,
    "old": OLD,
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_of_the_summary_comes_back(name: str) -> None:
    summary = parse_summary(FORMS[name])
    assert parse_summary(summary.to_text()) == summary


@pytest.mark.parametrize("name", ["resnet18", "resnet50-int8", "2026"])
def test_a_summary_that_is_cut_off_anywhere_is_a_clear_error(name: str, tmp_path: Path) -> None:
    lines = FORMS[name].splitlines(keepends=True)
    last = next(at for at, line in enumerate(lines) if "OPs:" in line)
    for length in range(1, last):
        text = "".join(lines[:length])
        folder = write(tmp_path / str(length), {"final-vaiml-pass-summary.txt": text})
        found = read_vendor(folder)
        assert found.summary is None, text
        assert found.problems[0].startswith("`final-vaiml-pass-summary.txt`")


def test_what_does_not_fit_is_not_to_be_used(tmp_path: Path) -> None:
    found = read_vendor(write(tmp_path / "key", FILES))
    here = why_not_reusable(found, STACK)
    assert "compiled for `ve2`, this machine has strix" in here[0]
    assert "for which driver" in here[-1]
    newer = Stack("1.8.0", "1.24.0", "", "", "", "strix")
    assert "written by 1.7.0, the provider here is 1.8.0" in why_not_reusable(found, newer)[0]
    assert "no VitisAI provider here" in why_not_reusable(found, None)[0]


def test_an_old_summary_alone_is_enough_to_know_it(tmp_path: Path) -> None:
    found = read_vendor(write(tmp_path / "k", {"final-vaiml-pass-summary.txt": OLD}))
    assert found.summary is not None
    assert found.summary.fallback.compile_error == 3


@pytest.mark.parametrize("name", ["folder", "m.rai", "missing"])
def test_what_is_none(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "m.rai").write_bytes(b"\x7fELF" + bytes(600))
    with pytest.raises(ArtifactError):
        read_vendor(tmp_path / name)
