"""The library's own check of signatures, against that of `cryptography`."""

from __future__ import annotations

import ctypes
import random
from typing import Any

import pytest

from vermilion.clib.build import SOURCE, compiler

pytestmark = pytest.mark.needs("c compiler", "cryptography")
# The sizes around which SHA-512 begins another block, and what a bundle's text has.
SIZES = (0, 1, 47, 48, 63, 64, 101, 111, 112, 127, 128, 239, 240, 300)
WRAPPER = """
#include "ed25519.c"
int check(const uint8_t *signature, const uint8_t *message, size_t size, const uint8_t *key) {
  return vm_ed25519_verify(signature, message, size, key);
}
"""


@pytest.fixture(scope="module")
def check(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("ed25519")
    (folder / "wrapper.c").write_text(WRAPPER)
    words = ["-std=c11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", f"-I{SOURCE}"]
    output = folder / "check.so"
    compiler().run("linux", [*words, "-o", str(output), str(folder / "wrapper.c")])
    return ctypes.CDLL(str(output)).check


def holds(signature: bytes, message: bytes, key: bytes) -> bool:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def flipped(data: bytes, source: random.Random) -> bytes:
    changed = bytearray(data)
    if changed:
        changed[source.randrange(len(changed))] ^= 1 << source.randrange(8)
    return bytes(changed)


def test_both_say_the_same_of_right_and_wrong_signatures(check: Any) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    source = random.Random(3)
    said = []
    for number in range(300):
        private = Ed25519PrivateKey.from_private_bytes(source.randbytes(32))
        key = private.public_key().public_bytes_raw()
        message = source.randbytes(SIZES[number % len(SIZES)])
        signature = private.sign(message)
        for one in (
            (signature, message, key),
            (flipped(signature, source), message, key),
            (signature, flipped(message, source), key),
            (signature, message, flipped(key, source)),
        ):
            found = check(one[0], one[1], len(one[1]), one[2]) == 1
            assert found == holds(*one), (number, one)
            said.append(found)
    assert 300 <= sum(said) < 330  # an empty message is not changed


def test_numbers_that_are_too_large_are_refused(check: Any) -> None:
    """RFC 8032, 5.1.7: s is below the order of the base point, a point is below p."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.from_private_bytes(bytes(32))
    key, signature = private.public_key().public_bytes_raw(), private.sign(b"x")
    order = 2**252 + 27742317777372353535851937790883648493
    more = (int.from_bytes(signature[32:], "little") + order).to_bytes(32, "little")
    assert check(signature, b"x", 1, key) == 1
    assert check(signature[:32] + more, b"x", 1, key) == 0
    for y in (2**255 - 19, 2**255 - 1):
        assert check(signature, b"x", 1, y.to_bytes(32, "little")) == 0
