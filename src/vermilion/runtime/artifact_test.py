from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import platformdirs
import pytest

import bundles
import models
from vermilion.api import compile_model
from vermilion.errors import ArtifactError
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.digest import model_digest
from vermilion.runtime.manifest import FORMAT_VERSION, MANIFEST_FILE, WEIGHTS_FILE
from vermilion.runtime.session import Session
from vermilion.runtime.write import pack, write_artifact
from vermilion.store.ed25519 import SigningKey, make_key
from vermilion.store.trust import distrust_key, trust_key


@pytest.fixture(params=["folder", "rai"])
def bundle(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    folder = tmp_path / "bundle"
    bundles.write_small(folder, tmp_path / "scratch")
    if request.param == "folder":
        return folder
    pack(folder, tmp_path / "bundle.rai")
    return tmp_path / "bundle.rai"


def test_both_forms_hold_the_same(bundle: Path) -> None:
    reader = open_artifact(bundle)
    assert [part.name for part in reader.manifest.parts] == ["vaiml_par_0", "cpu_par_0"]
    assert reader.manifest.cache_parts == bundles.small_cache_parts()
    assert reader.manifest.inputs[0].shape == ("n", 64)
    assert reader.summary() == bundles.small_summary()
    assert bytes(reader.read("final-vaiml-pass-summary.txt")).startswith(b"---------")
    assert reader.metadata == {"labels": "cat,dog"}


def test_weights_are_stored_once_and_lent_to_all(bundle: Path) -> None:
    reader = open_artifact(bundle)
    expected = bundles.small_weights()
    assert len(reader.read(WEIGHTS_FILE)) == sum(array.nbytes for array in expected.values())
    lent = {
        **reader.part("vaiml_par_0").weights(),
        **reader.part("cpu_par_0").weights(),
    }
    for name, array in reader.weights().items():
        np.testing.assert_array_equal(array, expected[name])
        np.testing.assert_array_equal(lent[name], expected[name])
        assert not array.flags.writeable
        assert array.ctypes.data % 64 == 0
        assert array.ctypes.data == lent[name].ctypes.data


def test_the_model_comes_back_the_same(bundle: Path) -> None:
    assert model_digest(open_artifact(bundle).model()) == model_digest(bundles.small_model())


def test_weights_outlive_the_reader(bundle: Path) -> None:
    weights = open_artifact(bundle).weights()
    np.testing.assert_array_equal(weights["w2"], bundles.small_weights()["w2"])


def test_the_folder_form_opens_in_stock_onnx_runtime(tmp_path: Path) -> None:
    bundles.write_small(tmp_path / "b", tmp_path / "scratch")
    path = tmp_path / "b" / "model.onnx"
    onnx.checker.check_model(path, full_check=True)
    x = np.ones((3, 64), np.float32)
    session = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(
        session.run(["y"], {"x": x})[0], bundles.small_answer(x)[0], rtol=1e-4, atol=1e-4
    )


def test_packing_twice_gives_the_same_bytes(tmp_path: Path) -> None:
    bundles.write_small(tmp_path / "b", tmp_path / "scratch")
    pack(tmp_path / "b", tmp_path / "1.rai")
    pack(tmp_path / "b", tmp_path / "2.rai")
    assert (tmp_path / "1.rai").read_bytes() == (tmp_path / "2.rai").read_bytes()


def test_writing_again_replaces_and_leaves_nothing_beside(tmp_path: Path) -> None:
    place = tmp_path / "out" / "b"
    bundles.write_small(place, tmp_path / "scratch")
    held = open_artifact(place)
    bundles.write_small(place, tmp_path / "scratch", seed=1)
    assert [path.name for path in place.parent.iterdir()] == ["b"]
    np.testing.assert_array_equal(
        open_artifact(place).weights()["w1"], bundles.small_weights(1)["w1"]
    )
    # What was open before still has its files.
    np.testing.assert_array_equal(held.weights()["w1"], bundles.small_weights(0)["w1"])


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    place = tmp_path / "out" / "b"
    bundles.write_small(place, tmp_path / "scratch")
    scratch = tmp_path / "other"
    content_parts = bundles.small_parts(scratch)
    (scratch / "cpu_par_0" / "part.onnx").unlink()
    with pytest.raises(FileNotFoundError):
        write_artifact(place, bundles.small_content(content_parts))
    assert [path.name for path in place.parent.iterdir()] == ["b"]
    open_artifact(place)


def test_a_folder_of_somebody_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos" / "cat.jpg").write_bytes(b"cat")
    with pytest.raises(ArtifactError, match="something that is not a compiled model"):
        bundles.write_small(tmp_path / "photos", tmp_path / "scratch")
    assert (tmp_path / "photos" / "cat.jpg").exists()


def test_files_that_are_not_listed_are_not_looked_at(tmp_path: Path) -> None:
    bundles.write_small(tmp_path / "b", tmp_path / "scratch")
    (tmp_path / "b" / ".DS_Store").write_bytes(b"?")
    reader = open_artifact(tmp_path / "b")
    with pytest.raises(ArtifactError, match=r"no file `\.DS_Store`"):
        reader.read(".DS_Store")
    with pytest.raises(ArtifactError, match="no file `secret`"):
        reader.part("cpu_par_0").read("secret")
    with pytest.raises(ArtifactError, match="no part `cpu_par_9`"):
        reader.part("cpu_par_9")


def test_the_manifest_on_disk_is_what_it_says(tmp_path: Path) -> None:
    bundles.write_small(tmp_path / "b", tmp_path / "scratch")
    rows = json.loads((tmp_path / "b" / MANIFEST_FILE).read_text())
    assert rows["format_version"] == FORMAT_VERSION
    assert {row["name"] for row in rows["members"]} == {
        "weights.bin",
        "model.onnx",
        "vaiml_par_0/part.onnx",
        "cpu_par_0/part.onnx",
        "final-vaiml-pass-summary.txt",
        "summary.json",
    }
    assert "onnxruntime" in rows["tools"]


# --- parts that reach for what is not theirs ---------------------------------------------------


def part_of(path: Path) -> onnx.ModelProto:
    return onnx.load(path, load_external_data=False)


def retarget(**entries: str) -> Callable[[onnx.TensorProto], None]:
    def apply(tensor: onnx.TensorProto) -> None:
        for entry in tensor.external_data:
            entry.value = entries.get(entry.key, entry.value)

    return apply


def more(tensor: onnx.TensorProto) -> None:
    tensor.external_data.add(key="location", value="weights.bin")


BAD_REFERENCES: dict[str, tuple[Callable[[onnx.TensorProto], object], str]] = {
    "other file": (retarget(location="../../etc/passwd"), "not in `weights.bin`"),
    "past the end": (retarget(offset="65536"), "ends after the end"),
    "huge offset": (retarget(offset="9" * 30), "that is none"),
    "negative offset": (retarget(offset="-64"), "that is none"),
    "words": (retarget(length="all"), "that is none"),
    "not aligned": (retarget(offset="3"), "that is none"),
    "shorter than its shape": (retarget(length="64"), "does not fit its shape"),
    "two locations": (more, "not in `weights.bin`"),
    "negative dimension": (lambda t: t.dims.__setitem__(0, -64), "does not fit its shape"),
    "huge dimension": (lambda t: t.dims.__setitem__(0, 2**62), "does not fit its shape"),
    "unknown type": (lambda t: setattr(t, "data_type", 99), "no known type"),
    "string type": (lambda t: setattr(t, "data_type", onnx.TensorProto.STRING), "kept in the"),
    "half a byte": (lambda t: setattr(t, "data_type", onnx.TensorProto.INT4), "kept in the"),
}


@pytest.mark.parametrize("case", BAD_REFERENCES)
def test_a_part_that_reaches_elsewhere_is_refused(case: str, tmp_path: Path) -> None:
    change, words = BAD_REFERENCES[case]
    folder = tmp_path / "bundle"
    bundles.write_small(folder, tmp_path / "scratch")
    proto = part_of(folder / "cpu_par_0" / "part.onnx")
    change(proto.graph.initializer[0])
    bundles.replace_member(folder, "cpu_par_0/part.onnx", proto.SerializeToString())
    with pytest.raises(ArtifactError, match=words):
        open_artifact(folder).part("cpu_par_0").weights()


def test_a_weight_inside_a_node_cannot_lie_outside(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    bundles.write_small(folder, tmp_path / "scratch")
    proto = part_of(folder / "cpu_par_0" / "part.onnx")
    tensor = onnx.TensorProto(name="t", data_type=1, dims=[1])
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    inner = onnx.helper.make_node("Constant", [], ["c"], value=tensor)
    branch = onnx.helper.make_graph([inner], "branch", [], [])
    proto.graph.node.append(onnx.helper.make_node("If", ["c"], ["d"], then_branch=branch))
    bundles.replace_member(folder, "cpu_par_0/part.onnx", proto.SerializeToString())
    with pytest.raises(ArtifactError, match="`t` inside a node lies outside"):
        open_artifact(folder).part("cpu_par_0").weights()


@pytest.mark.parametrize("data", [b"\xff" * 100, b"\x0a" * 5000, b"PK\x03\x04"])
def test_a_part_that_is_no_model_is_refused(data: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    bundles.write_small(folder, tmp_path / "scratch")
    bundles.replace_member(folder, "cpu_par_0/part.onnx", data)
    with pytest.raises(ArtifactError, match="not an ONNX model"):
        open_artifact(folder).part("cpu_par_0").weights()


pytestmark = pytest.mark.needs("cryptography")
FEED = {"input": np.random.default_rng(0).random((1, 3, 16, 16), dtype=np.float32)}


@pytest.fixture(scope="module")
def signed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, SigningKey]:
    """Return a bundle that a key signed, and the key."""
    folder = tmp_path_factory.mktemp("signed")
    key = make_key(folder / "key.pem")
    compiled = compile_model(
        models.small_cnn(), cache_dir=folder / "cache", sign=folder / "key.pem"
    )
    assert compiled.signed_by == key.public
    return compiled.artifact, key


@pytest.fixture
def foreign(
    signed: tuple[Path, SigningKey], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Path:
    """Return a copy of it that was, as far as this user's secret tells, made elsewhere."""
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "data"))
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "default"))
    monkeypatch.delenv("VERMILION_TRUST", raising=False)
    copy = tmp_path / "copy"
    shutil.copytree(signed[0], copy)
    return copy


def runs_as_it_is(artifact: Path) -> bool:
    with Session(artifact) as session:
        session.run(None, FEED)
        return session.notes == ()


def test_only_a_trusted_key_makes_it_run(foreign: Path, signed: tuple[Path, SigningKey]) -> None:
    key = signed[1].public
    with Session(foreign) as session:
        assert f"signed by the key {key}, which is not trusted here" in session.notes[0]
        again = session.run(None, FEED)
    trust_key(key, "builders")
    with Session(foreign) as session:
        assert session.notes == ()
        np.testing.assert_array_equal(session.run(None, FEED)[0], again[0])
    distrust_key("builders")
    assert not runs_as_it_is(foreign)


def test_one_file_carries_the_signature(
    foreign: Path, signed: tuple[Path, SigningKey], tmp_path: Path
) -> None:
    trust_key(signed[1].public, "builders")
    pack(foreign, tmp_path / "net.rai")
    assert runs_as_it_is(tmp_path / "net.rai")
    (foreign / "manifest.sig").unlink()
    pack(foreign, tmp_path / "plain.rai")
    assert not runs_as_it_is(tmp_path / "plain.rai")


def test_what_was_changed_since_is_not_signed(
    foreign: Path, signed: tuple[Path, SigningKey]
) -> None:
    trust_key(signed[1].public, "builders")
    code = next(foreign.glob("vaiml_par_0/*.o"))
    ud2 = b"\x0f\x0b" * (code.stat().st_size // 2)
    bundles.replace_member(foreign, code.relative_to(foreign).as_posix(), ud2)
    with Session(foreign) as session:
        assert "its signature does not fit" in session.notes[0]
        session.run(None, FEED)


def test_code_that_was_exchanged_under_the_manifest_is_found(
    foreign: Path, signed: tuple[Path, SigningKey]
) -> None:
    trust_key(signed[1].public, "builders")
    code = next(foreign.glob("vaiml_par_0/*.o"))
    data = bytearray(code.read_bytes())
    data[-1] ^= 1
    code.chmod(0o644)
    code.write_bytes(data)
    with pytest.raises(ArtifactError, match="is not what was written"):
        Session(foreign)


@pytest.mark.parametrize("data", [b"", b"ed25519", b"x" * 202, b"x" * 1_000_000])
def test_a_damaged_signature_is_none(
    foreign: Path, signed: tuple[Path, SigningKey], data: bytes
) -> None:
    trust_key(signed[1].public, "builders")
    (foreign / "manifest.sig").write_bytes(data)
    with Session(foreign) as session:
        assert session.notes
    (foreign / "manifest.sig").unlink()
    (foreign / "manifest.sig").symlink_to(signed[0] / "manifest.sig")
    with pytest.raises(ArtifactError, match="is a link"):
        Session(foreign)


def test_a_manifest_does_not_list_its_signature(foreign: Path) -> None:
    def change(rows: dict[str, object]) -> None:
        members = rows["members"]
        assert isinstance(members, list)
        members.append({"name": "manifest.sig", "size": 202, "sha256": "0" * 64})

    bundles.edit_manifest(foreign, change)
    with pytest.raises(ArtifactError, match="lists itself, or its signature"):
        open_artifact(foreign)


def test_the_variable_runs_code_from_anywhere(
    foreign: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (foreign / "manifest.sig").unlink()
    monkeypatch.setenv("VERMILION_TRUST", "1")
    assert runs_as_it_is(foreign)


def test_code_from_elsewhere_is_never_signed_as_ones_own(
    foreign: Path,
    signed: tuple[Path, SigningKey],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Though the user trusts it: what lies in the cache is compiled again before it is sealed."""
    entry = tmp_path / "default" / signed[0].name
    entry.parent.mkdir(exist_ok=True)
    shutil.copytree(foreign, entry)
    seal = json.loads((entry / "manifest.json").read_text())["seal"]
    trust_key(signed[1].public, "builders")
    monkeypatch.setenv("VERMILION_TRUST", "1")
    make_key(tmp_path / "mine.pem")
    compiled = compile_model(
        models.small_cnn(), sign=tmp_path / "mine.pem", ep_context=tmp_path / "net_ctx.onnx"
    )
    assert not compiled.cache_hit
    assert "not written by this user" in compiled.cache_reason
    assert json.loads((compiled.artifact / "manifest.json").read_text())["seal"] != seal


def test_a_model_that_was_compiled_before_is_signed_all_the_same(
    signed: tuple[Path, SigningKey], tmp_path: Path
) -> None:
    make_key(tmp_path / "other.pem")
    again = compile_model(
        models.small_cnn(),
        cache_dir=signed[0].parent,
        sign=signed[0].parent.parent / "key.pem",
        output=tmp_path / "net.rai",
    )
    assert again.cache_hit
    assert again.signed_by == signed[1].public
    assert b"manifest.sig" in (tmp_path / "net.rai").read_bytes()
