"""From a model to its plugin and back: what is missing, what is compiled, what is found again."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import llm_folders
import tiny_llama
from tiny_llama import Tiny
from vermilion.codegen.isa import isa_of
from vermilion.errors import ArtifactError, OptionError, UnsupportedError
from vermilion.hardware.targets.find import find_target
from vermilion.llm.plugins.archive import SEAL, Plugin, read_plugin
from vermilion.llm.plugins.archive_test import contents, rewrite
from vermilion.llm.plugins.compile_plugin import compile_plugin, write_operator_list
from vermilion.llm.plugins.decode_operator import why_not
from vermilion.llm.plugins.find import Found, Missing, missing_error, open_plugins, plugin_root
from vermilion.llm.plugins.identity import Identity, rows_for
from vermilion.llm.plugins.verify import verify_plugin
from vermilion.llm.plugins.wanted import OperatorRequest, needs_of

SMALL = OperatorRequest(context=128)


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DD_PLUGINS_ROOT", raising=False)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Compile the small model's plugin once, for all tests that begin with it."""
    base = tmp_path_factory.mktemp("compiled")
    model = tiny_llama.write_folder(base / "model", Tiny(bits=4))
    made = compile_plugin(needs_of(model, SMALL), "p", base)
    assert made.plugin is not None
    return made.plugin.path


@pytest.fixture
def plugin(compiled: Path, tmp_path: Path) -> Plugin:
    """Put that plugin where it is looked for."""
    place = tmp_path / "dd_plugins" / "p.zip"
    place.parent.mkdir()
    shutil.copyfile(compiled, place)
    return read_plugin(place)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tiny_llama.write_folder(tmp_path / "model", Tiny(bits=4))


# Whether a token's products are compiled for this machine too.
DECODES = not why_not({"K": 64, "N": 64, "bits": 4, "block": 32})
# Whether the engine compiles the model's own programs, which multiply in bfloat16 too.
HAS_ENGINE = DECODES and isa_of(find_target("cpu")).has_bf16


def shapes(folder: Path) -> set[tuple[int, int]]:
    found = needs_of(folder, SMALL).identities
    return {(one.shape["K"], one.shape["N"]) for one in found if not one.is_decode}


def test_each_product_of_a_prompt_is_wanted_and_nothing_else(folder: Path) -> None:
    needs = needs_of(folder, SMALL)
    assert shapes(folder) == {(64, 128), (64, 64), (64, 96), (96, 64)}
    reasons = {one.row.operator.op_type: one.reason for one in needs.asked if one.reason}
    assert "stays on the CPU" in reasons["Embedding"]
    assert "no matrix product" in reasons["GroupQueryAttention"]
    head = next(one for one in needs.asked if one.row.operator.shape.get("N") == 320)
    assert {one.number for one in head.identities} == ({"int4"} if DECODES else set())
    assert {one.target for one in needs.identities} == {find_target("cpu").name}


def test_rows_are_those_of_the_context() -> None:
    assert rows_for(2048) == (128, 256, 512, 1024, 2048)
    assert rows_for(600) == (128, 256, 512)
    assert rows_for(64) == (128,)
    assert rows_for(2048, 673) == (673,)


def test_what_is_compiled_is_found_and_right(folder: Path, tmp_path: Path) -> None:
    needs = needs_of(folder, OperatorRequest(context=256))
    made = compile_plugin(needs, "p", tmp_path / "dd_plugins")
    assert made.plugin is not None
    count = 8 + 5 * DECODES
    assert (made.compiled, made.reused) == (count, 0)
    told: list[str] = []
    plugins = open_plugins(plugin_root(), told.append)
    found, missing = plugins.find_all(needs.identities, told.append)
    assert (len(found), missing) == (count, [])
    assert len(told) == 1 + count
    assert "p.zip, objects/" in told[-1]
    checked = verify_plugin(made.plugin, folder)
    assert len(checked) == 4 + 5 * DECODES
    assert all(one.is_right and one.error > 0 for one in checked)


def test_a_fine_tune_compiles_nothing(plugin: Plugin, tmp_path: Path) -> None:
    tuned = tiny_llama.write_folder(tmp_path / "tuned", Tiny(bits=4, seed=7))
    again = compile_plugin(needs_of(tuned, SMALL), "tuned", tmp_path / "transaction-plugin")
    assert (again.compiled, again.reused) == (0, len(plugin.entries))
    assert again.plugin is not None
    assert again.plugin.entries == plugin.entries
    assert again.plugin.programs == plugin.programs
    assert again.programs == "there" if HAS_ENGINE else "needs AVX-512" in again.programs


def test_compiling_again_gives_the_same_bytes(
    plugin: Plugin, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DD_PLUGINS_ROOT", str(tmp_path / "none"))
    again = compile_plugin(needs_of(folder, SMALL), "p", tmp_path / "apart")
    assert again.compiled == len(plugin.entries)
    assert again.plugin is not None
    assert again.plugin.path.read_bytes() == plugin.path.read_bytes()


@pytest.mark.parametrize(
    ("changed", "new"),
    [
        (Tiny(bits=4, head_size=32), {(64, 256), (128, 64)}),
        (Tiny(bits=4, hidden=96), {(96, 128), (64, 96), (96, 96)}),
        (Tiny(bits=4, inner=160), {(64, 160), (160, 64)}),
        (Tiny(bits=4, split_qkv=True), {(64, 32)}),
    ],
)
def test_a_changed_architecture_compiles_what_is_new(
    changed: Tiny, new: set[tuple[int, int]], plugin: Plugin, tmp_path: Path
) -> None:
    old = {(one.identity.shape["K"], one.identity.shape["N"]) for one in plugin.entries}
    other = tiny_llama.write_folder(tmp_path / "other", changed)
    needs = needs_of(other, SMALL)
    _, missing = open_plugins(plugin_root(), lambda _: None).find_all(
        needs.identities, lambda _: None
    )
    assert {(m.identity.shape["K"], m.identity.shape["N"]) for m in missing} >= new - old
    made = compile_plugin(needs, "other", tmp_path / "dd_plugins")
    assert made.compiled >= len(shapes(other) - old)
    assert made.compiled + made.reused == len(needs.identities)
    assert made.plugin is not None
    assert all(one.is_right for one in verify_plugin(made.plugin, other))


def test_shapes_of_a_shipped_model_need_no_plugin(tmp_path: Path) -> None:
    stated = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True}
    sizes = {
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "quantization_config": stated,
    }
    llm_folders.config_file(tmp_path, **sizes)
    needs = needs_of(tmp_path, SMALL)
    assert needs.identities == ()
    assert compile_plugin(needs, "p", tmp_path / "dd_plugins").plugin is None
    assert not (tmp_path / "dd_plugins").exists()
    asked = OperatorRequest(context=128, with_known=True)
    prompt = [one for one in needs_of(tmp_path, asked).identities if not one.is_decode]
    assert len(prompt) == 4


def test_the_list_says_what_would_be_compiled_and_why_not(folder: Path, tmp_path: Path) -> None:
    request = OperatorRequest(context=128, groups=("gemm",))
    path = write_operator_list(needs_of(folder, request), "p", ("gemm",), tmp_path)
    assert path == tmp_path / "p" / "p_gemm.json"
    rows = json.loads(path.read_text())["operators"]
    compiled = [row for row in rows if row["compile"]]
    assert {row["op_type"] for row in compiled} == {"MatMulNBits"}
    assert all(row["reason"] for row in rows if not row["compile"])


def test_look_ups_that_fail_say_why(plugin: Plugin, folder: Path, tmp_path: Path) -> None:
    wanted = needs_of(folder, SMALL).identities[0]
    path = plugin.path

    def look(identity: Identity = wanted) -> Found | Missing:
        return open_plugins(plugin_root(), lambda _: None).find(identity, lambda _: None)

    assert isinstance(look(), Found)
    other = Identity(wanted.operator, wanted.shape, 999, wanted.number, wanted.target)
    missing = look(other)
    assert isinstance(missing, Missing)
    assert missing.reason == "in no plugin"
    files = contents(path)
    (tmp_path / "work").mkdir()
    rewrite(path, {**files, SEAL: b"0" * 64}, tmp_path / "work")
    elsewhere = look()
    assert isinstance(elsewhere, Missing)
    assert "compiled elsewhere" in elsewhere.reason
    error = missing_error([missing, elsewhere], plugin_root(), "vermilion onnx_utils …")
    assert "K 64 N 128" in error.message
    assert "vermilion onnx_utils …" in error.hint
    # Code from elsewhere is not taken over either: it is compiled again.
    again = compile_plugin(needs_of(folder, SMALL), "again", tmp_path / "dd_plugins")
    assert again.reused == 0


def test_a_plugin_of_another_version_is_told(plugin: Plugin, folder: Path, tmp_path: Path) -> None:
    wanted = needs_of(folder, SMALL).identities[0]
    entry = next(e for e in plugin.entries if e.identity.as_json() == wanted.as_json())
    files = contents(plugin.path)
    old = "f" * 64
    manifest = json.loads(files["manifest.json"])
    for row in manifest["operators"]:
        if row["key"] == entry.key:
            row["key"] = old
    files["manifest.json"] = json.dumps(manifest).encode()
    files[f"objects/{old}.o"] = files.pop(entry.member)
    (tmp_path / "work").mkdir()
    rewrite(plugin.path, files, tmp_path / "work")
    found = open_plugins(plugin_root(), lambda _: None).find(wanted, lambda _: None)
    assert isinstance(found, Missing)
    assert "another version" in found.reason


def test_a_damaged_plugin_stops_the_look_up(plugin: Plugin) -> None:
    data = bytearray(plugin.path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    plugin.path.write_bytes(bytes(data))
    with pytest.raises(ArtifactError):
        open_plugins(plugin_root(), lambda _: None)


def test_the_root_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert plugin_root() == Path("dd_plugins")
    assert open_plugins(plugin_root(), lambda _: None).plugins == ()
    file = tmp_path / "p.zip"
    file.write_bytes(b"")
    monkeypatch.setenv("DD_PLUGINS_ROOT", str(file))
    with pytest.raises(OptionError, match="not the folder that holds them"):
        open_plugins(plugin_root(), lambda _: None)


def test_phoenix_and_other_devices_are_refused(folder: Path) -> None:
    with pytest.raises(UnsupportedError, match="Phoenix and Hawk Point run no language models"):
        needs_of(folder, OperatorRequest(targets=("phoenix",)))
    with pytest.raises(UnsupportedError, match="vendor's tools") as caught:
        needs_of(folder, OperatorRequest(targets=("strix",)))
    assert "--with vendor" in caught.value.hint


def test_wrong_names_and_lengths(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="--ops conv"):
        needs_of(folder, OperatorRequest(groups=("conv",)))
    with pytest.raises(OptionError, match="over the model's context of 256"):
        needs_of(folder, OperatorRequest(exact_length=300))
    with pytest.raises(OptionError, match="cannot be the name"):
        compile_plugin(needs_of(folder, SMALL), "../p", tmp_path)
    with pytest.raises(OptionError, match="no such folder"):
        needs_of(tmp_path / "none", SMALL)
