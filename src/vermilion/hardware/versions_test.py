import pytest

from vermilion.hardware.versions import is_older, version_fields


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
