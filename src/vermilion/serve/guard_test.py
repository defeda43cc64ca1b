"""Keys of a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from vermilion.errors import OptionError
from vermilion.serve.guard import is_known, read_keys


def test_keys_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\n\n  a-key-of-20-letters-  \nanother-key-of-some\n")
    known = read_keys(file)
    assert len(known) == 2
    assert is_known("a-key-of-20-letters-", known)
    assert is_known("another-key-of-some", known)
    assert not is_known("", known)
    assert not is_known("a-key-of-20-letters", known)
    assert b"another" not in b"".join(known)  # digests alone are held
    for text, words in (("# none\n", "holds no key"), ("short\n", "fewer than 16")):
        file.write_text(text)
        with pytest.raises(OptionError, match=words):
            read_keys(file)
