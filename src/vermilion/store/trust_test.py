from __future__ import annotations

from pathlib import Path

import platformdirs
import pytest

from vermilion.errors import ArtifactError, OptionError
from vermilion.store.trust import (
    TrustedKey,
    distrust_key,
    trust_key,
    trusted_keys,
    trusted_keys_file,
    trusts_all,
    why_not_trusted,
)

KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(platformdirs, "user_data_dir", lambda *_, **__: str(tmp_path / "data"))
    monkeypatch.delenv("VERMILION_TRUST", raising=False)
    return tmp_path


def test_keys_are_added_renamed_and_removed() -> None:
    assert trusted_keys() == ()
    trust_key(KEY, "build server")
    trust_key(OTHER, "ana@desk")
    trust_key(KEY, "builders")
    assert trusted_keys() == (TrustedKey(OTHER, "ana@desk"), TrustedKey(KEY, "builders"))
    assert distrust_key("builders").key == KEY
    assert distrust_key(OTHER).name == "ana@desk"
    assert trusted_keys() == ()
    with pytest.raises(OptionError, match="no trusted key is called `builders`"):
        distrust_key("builders")


@pytest.mark.parametrize("name", ["", " x", "a\nb", "x" * 65, "#x", "a/b"])
def test_a_name_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(OptionError, match="cannot be the name"):
        trust_key(KEY, name)


def test_two_keys_do_not_share_a_name() -> None:
    trust_key(KEY, "one")
    with pytest.raises(OptionError, match="another key is called `one`"):
        trust_key(OTHER, "one")


def test_a_damaged_file_trusts_nobody() -> None:
    file = trusted_keys_file()
    file.parent.mkdir(parents=True)
    file.write_text(f"# ours\n\n{KEY} one\n")
    assert trusted_keys() == (TrustedKey(KEY, "one"),)
    file.write_text(f"{KEY} one\n{OTHER[1:]} two\n")
    with pytest.raises(ArtifactError, match="line 2"):
        trusted_keys()
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ArtifactError, match="cannot be read"):
        trusted_keys()


@pytest.mark.needs("cryptography")
def test_a_signature_counts_only_of_a_trusted_key(tmp_path: Path) -> None:
    from vermilion.store.ed25519 import make_key

    key = make_key(tmp_path / "key.pem")
    line = key.signature_of("bundle", "c" * 64)
    assert key.public in why_not_trusted("bundle", "c" * 64, line)
    trust_key(key.public, "one")
    assert why_not_trusted("bundle", "c" * 64, line) == ""
    assert "does not fit" in why_not_trusted("bundle", "d" * 64, line)
    assert "not made on this machine" in why_not_trusted("bundle", "c" * 64, b"")


@pytest.mark.parametrize(("value", "all_of_it"), [("1", True), ("0", False), ("", False)])
def test_the_variable_trusts_all(
    value: str, all_of_it: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VERMILION_TRUST", value)
    assert trusts_all() == all_of_it
    assert (why_not_trusted("bundle", "c" * 64, b"") == "") == all_of_it
