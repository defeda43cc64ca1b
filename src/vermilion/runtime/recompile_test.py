"""Machine code from elsewhere is not run: the model beside it is compiled again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

import bundles
import models
from vermilion.api import compile_model
from vermilion.backends.base import CompileOptions
from vermilion.backends.native import NativeBackend
from vermilion.backends.ort import OrtBackend
from vermilion.errors import ArtifactError
from vermilion.ir.execute import open_session, run_session
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.session import Session
from vermilion.runtime.stored_options import StoredOptions, options_to_store, read_options


@pytest.fixture
def bundle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "default"))
    compiled = compile_model(models.small_cnn(), cache_dir=tmp_path / "cache")
    backends = {part.backend for part in open_artifact(compiled.artifact).manifest.parts}
    assert backends == {"native"}
    return compiled.artifact


def with_seal(bundle: Path, seal: str) -> None:
    """Return the bundle another seal: what it looks like when it was compiled elsewhere."""
    manifest = bundle / "manifest.json"
    rows = json.loads(manifest.read_text())
    manifest.write_text(json.dumps({**rows, "seal": seal}))


def expected(feed: dict[str, np.ndarray]) -> np.ndarray:
    return next(iter(run_session(open_session(models.small_cnn()), feed).values()))


def test_our_own_bundle_runs_as_it_is(bundle: Path) -> None:
    with Session(bundle) as session:
        assert session.notes == ()
        assert session.manifest.digest == open_artifact(bundle).manifest.digest


@pytest.mark.parametrize("seal", ["", "0" * 64])
def test_a_bundle_from_elsewhere_is_compiled_again(bundle: Path, seal: str) -> None:
    with_seal(bundle, seal)
    feed = {"input": np.random.default_rng(0).random((1, 3, 16, 16), dtype=np.float32)}
    with Session(bundle) as session:
        assert "was not made on this machine" in session.notes[0]
        assert session.manifest.digest != open_artifact(bundle).manifest.digest
        np.testing.assert_allclose(session.run(None, feed)[0], expected(feed), rtol=1e-4, atol=1e-5)


def test_poisoned_code_is_never_reached(bundle: Path) -> None:
    # A bundle whose digests all fit and whose code is another: only the seal tells.
    code = next(bundle.glob("vaiml_par_0/*.o"))
    ud2 = b"\x0f\x0b" * (code.stat().st_size // 2)  # dies where it is run
    bundles.replace_member(bundle, code.relative_to(bundle).as_posix(), ud2)
    feed = {"input": np.zeros((1, 3, 16, 16), np.float32)}
    with Session(bundle) as session:
        assert session.notes
        np.testing.assert_allclose(session.run(None, feed)[0], expected(feed), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("verify", [True, False])
def test_code_that_was_exchanged_is_found_whatever_is_left_out(bundle: Path, verify: bool) -> None:
    # The signature is of the manifest, so it still holds: the file's digest is what tells.
    code = next(bundle.glob("vaiml_par_0/*.o"))
    code.chmod(0o644)
    code.write_bytes(b"\x0f\x0b" * (code.stat().st_size // 2) + b"\0" * (code.stat().st_size % 2))
    for artifact in (bundle, open_artifact(bundle, verify=False)):
        with pytest.raises(ArtifactError, match="is not what was written"):
            Session(artifact, verify=verify)
    with pytest.raises(ArtifactError, match="is not what was written"):
        Session(bundle, verify=verify, trust_code=True)


def test_without_verify_weights_are_taken_as_they_are(bundle: Path) -> None:
    packed = next(bundle.glob("vaiml_par_0/packed.bin"))
    data = bytearray(packed.read_bytes())
    data[0] ^= 1
    packed.chmod(0o644)
    packed.write_bytes(data)
    with Session(bundle, verify=False) as session:
        assert session.notes == ()
    with pytest.raises(ArtifactError, match="is not what was written"):
        Session(bundle)


def test_a_session_with_backends_of_its_own_runs_no_foreign_code(bundle: Path) -> None:
    with_seal(bundle, "0" * 64)
    backends = {"native": NativeBackend(), "ort": OrtBackend()}
    with Session(bundle, backends=backends) as session:
        assert "was not made on this machine" in session.notes[0]


def test_code_can_be_trusted_by_name(bundle: Path) -> None:
    with_seal(bundle, "")
    with Session(bundle, trust_code=True) as session:
        assert session.notes == ()


def conv_model() -> ir.Model:
    net = models.Net("convolutions", 5)
    last = net.input("x", (1, 3, 40, 40))
    for at in range(2):
        last = models.conv(net, last, f"conv{at}", (64 if at else 3, 64), 3)
    net.output(last, "y", (1, 64, 40, 40))
    return net.model()


def test_options_that_decide_numbers_hold_where_a_bundle_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERMILION_CACHE", str(tmp_path / "default"))
    feed = {"x": np.random.default_rng(1).standard_normal((1, 3, 40, 40), np.float32)}
    direct = compile_model(conv_model(), winograd=False, cache_dir=tmp_path / "cache").artifact
    fast = compile_model(conv_model(), cache_dir=tmp_path / "cache").artifact
    exact, other = (Session(one).run(None, feed)[0] for one in (direct, fast))
    assert not np.array_equal(exact, other)  # else the option decides nothing here
    for bundle, numbers in ((direct, exact), (fast, other)):
        with_seal(bundle, "")
        with Session(bundle) as session:
            assert session.notes
            np.testing.assert_array_equal(session.run(None, feed)[0], numbers)
            assert session.manifest.options == open_artifact(bundle).manifest.options | {
                "dims": "{}"
            }


def test_a_bundle_of_an_earlier_release_names_fewer_options(bundle: Path) -> None:
    def change(rows: dict[str, object]) -> None:
        rows["options"] = {"precision": "auto"}

    bundles.edit_manifest(bundle, change)
    with_seal(bundle, "")
    with Session(bundle) as session:
        assert session.notes
        assert session.manifest.options["winograd"] == "True"


@pytest.mark.parametrize("name", ["winograd", "fix", "provider_options"])
def test_an_option_that_cannot_be_read_is_told(bundle: Path, name: str) -> None:
    def change(rows: dict[str, object]) -> None:
        rows["options"] = {"precision": "auto", name: "[]"}

    bundles.edit_manifest(bundle, change)
    with_seal(bundle, "")
    with pytest.raises(ArtifactError, match=f"option `{name}`"):
        Session(bundle)


def test_every_option_goes_into_a_manifest_and_back() -> None:
    options = CompileOptions(precision="bf16", winograd=False, provider_options={"a": "1"})
    stored = options_to_store(options, fix=True, backend="ort", dims={"x": (1, 3), "n": 2})
    assert all(isinstance(value, str) for value in stored.values())
    assert read_options(stored, "here") == StoredOptions(options, True, "ort")
    assert read_options({}, "here") == StoredOptions(CompileOptions(), False, "")
