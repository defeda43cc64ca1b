from __future__ import annotations

import stat
import sys
from pathlib import Path

import pytest

from vermilion.errors import OptionError, Refusal
from vermilion.store.ed25519 import (
    SIGNATURE_BYTES,
    SigningKey,
    make_key,
    read_public_key,
    read_signing_key,
    signer_of,
)

pytestmark = pytest.mark.needs("cryptography")
DIGEST = "ab" * 32
FIXED = (
    "ed25519 d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a "
    "ed5c855703b3e03b3efe90cb9b9438b02419689082f876a905eb5559f23fab21"
    "e83eac9857ae89f4e43f550b356aa61a160bff4922b76dc0db4cb9b13c55b008\n"
)


@pytest.fixture
def key(tmp_path: Path) -> SigningKey:
    return make_key(tmp_path / "key.pem")


def test_a_signature_is_of_one_digest_and_one_kind(key: SigningKey) -> None:
    line = key.signature_of("bundle", DIGEST)
    assert len(line) == SIGNATURE_BYTES
    assert signer_of(line, "bundle", DIGEST) == key.public
    for kind, digest in (("plugin", DIGEST), ("bundle", "ba" * 32)):
        found = signer_of(line, kind, digest)
        assert isinstance(found, Refusal)
        assert "does not fit" in found.reason


def test_every_changed_digit_is_seen(key: SigningKey) -> None:
    line = key.signature_of("bundle", DIGEST)
    for at in range(8, len(line) - 1, 7):
        changed = bytearray(line)
        changed[at] = ord("1") if line[at : at + 1] == b"0" else ord("0")
        if bytes(changed) != line:
            assert isinstance(signer_of(bytes(changed), "bundle", DIGEST), Refusal)


@pytest.mark.parametrize("cut", [0, 1, 100, 201])
def test_a_damaged_line_is_no_signature(key: SigningKey, cut: int) -> None:
    line = key.signature_of("bundle", DIGEST)
    for wrong in (line[:cut], line.upper(), line + b"\n", line.replace(b"ed", b"rs")):
        found = signer_of(wrong, "bundle", DIGEST)
        assert isinstance(found, Refusal)
        assert "damaged" in found.reason


def test_the_layout_is_fixed() -> None:
    """The seed of RFC 8032's first test; the bytes that programs in C check."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    seed = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
    key = SigningKey(Ed25519PrivateKey.from_private_bytes(bytes.fromhex(seed)))
    assert key.public == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert key.signature_of("bundle", "0" * 64).decode() == FIXED


def test_keys_of_other_programs_are_read(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    expected = private.public_key().public_bytes_raw().hex()
    secret, public = tmp_path / "id_ed25519", tmp_path / "builder.pem"
    plain = serialization.NoEncryption()
    encoding, form = serialization.Encoding, serialization.PublicFormat
    secret.write_bytes(
        private.private_bytes(encoding.PEM, serialization.PrivateFormat.OpenSSH, plain)
    )
    assert read_signing_key(secret).public == expected
    public.write_bytes(private.public_key().public_bytes(encoding.PEM, form.SubjectPublicKeyInfo))
    assert read_public_key(str(public)) == (expected, "builder")
    public.write_bytes(
        private.public_key().public_bytes(encoding.OpenSSH, form.OpenSSH) + b" ci@builders\n"
    )
    assert read_public_key(str(public)) == (expected, "ci@builders")
    public.write_text(f"{expected.upper()}\n")
    assert read_public_key(str(public)) == (expected, "builder")
    assert read_public_key(expected) == (expected, "")
    assert read_public_key(str(secret)) == (expected, "id_ed25519")


@pytest.mark.skipif(sys.platform == "win32", reason="this system has other file rights")
def test_a_new_key_is_for_its_user_alone_and_replaces_none(key: SigningKey, tmp_path: Path) -> None:
    file = tmp_path / "key.pem"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert read_public_key(f"{file}.pub") == (key.public, "key.pem")
    with pytest.raises(OptionError, match="cannot be written"):
        make_key(file)
    assert read_signing_key(file).public == key.public
    (tmp_path / "other.pub").write_text("taken")
    with pytest.raises(OptionError, match="cannot be written"):
        make_key(tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_a_file_that_is_no_key_is_named(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    file = tmp_path / "x.pem"
    with pytest.raises(OptionError, match="cannot be read"):
        read_signing_key(file)
    file.write_bytes(b"x" * 100_000)
    with pytest.raises(OptionError, match="too large"):
        read_signing_key(file)
    file.write_bytes(b"no key")
    with pytest.raises(OptionError, match="no private key"):
        read_signing_key(file)
    with pytest.raises(OptionError, match="no Ed25519 public key"):
        read_public_key(str(file))
    other = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.PKCS8
    plain = serialization.NoEncryption()
    file.write_bytes(other.private_bytes(serialization.Encoding.PEM, form, plain))
    with pytest.raises(OptionError, match="another kind"):
        read_signing_key(file)
    secret = serialization.BestAvailableEncryption(b"word")
    file.write_bytes(other.private_bytes(serialization.Encoding.PEM, form, secret))
    with pytest.raises(OptionError, match="has a passphrase"):
        read_signing_key(file)
