"""Machine code from elsewhere runs where a key that the user trusts signed it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import platformdirs
import pytest

import bundles
import models
from vermilion.api import compile_model
from vermilion.errors import ArtifactError
from vermilion.runtime.artifact import open_artifact
from vermilion.runtime.session import Session
from vermilion.runtime.write import pack
from vermilion.store.ed25519 import SigningKey, make_key
from vermilion.store.trust import distrust_key, trust_key

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
