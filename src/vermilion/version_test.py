from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from vermilion.version import VERSION, code_digest, is_older, version_fields

PACKAGE = Path(__file__).parent


def digest_of(package: Path) -> str:
    """Ask a copy of the package, in a process that knows no other."""
    code = "from vermilion.version import code_digest; print(code_digest())"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=package.parent, check=True
    )
    return done.stdout.strip()


def test_the_version_is_one_that_packages_may_have() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+", VERSION)


def test_the_digest_changes_with_the_code_and_with_nothing_else(tmp_path: Path) -> None:
    copy = tmp_path / "vermilion"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    before = digest_of(copy)
    assert re.fullmatch(r"[0-9a-f]{64}", before)
    (copy / "api_test.py").write_text("tests = 'are not in it'\n")
    (copy / "notes.txt").write_text("neither is this\n")
    assert digest_of(copy) == before
    with (copy / "ir" / "ops.py").open("a") as file:
        file.write("# a patch\n")
    patched = digest_of(copy)
    assert patched != before
    (copy / "ir" / "ops.py").rename(copy / "ir" / "operations.py")
    assert digest_of(copy) not in (before, patched)


def test_it_is_computed_once() -> None:
    assert code_digest() is code_digest()


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("32.0.203.280", (32, 0, 203, 280)),
        ("6.8.0-45-generic", (6, 8, 0)),
        ("1.27.1+rocm7.14.0", (1, 27, 1)),
        ("driver 05.30 2025", (5, 30)),
        ("", ()),
        ("unknown", ()),
    ],
)
def test_version_fields(text, fields):
    assert version_fields(text) == fields


@pytest.mark.parametrize(
    ("version", "minimum", "older"),
    [
        ("32.0.22032.6002", "32.0.203.280", False),  # as text it would be older
        ("32.0.20102.3930", "32.0.203.280", False),
        ("32.0.203.297", "32.0.203.280", False),
        ("32.0.203.280", "32.0.203.280", False),
        ("32.0.203.99", "32.0.203.280", True),
        ("31.9.999.999", "32.0.203.280", True),
        ("6.9", "6.10", True),
        ("6.10", "6.10.0", False),
        ("6.10.1", "6.10", False),
        ("unknown", "1.0", False),
    ],
)
def test_is_older(version, minimum, older):
    assert is_older(version, minimum) is older
