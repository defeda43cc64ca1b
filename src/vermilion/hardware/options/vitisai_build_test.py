from __future__ import annotations

import pytest

from vermilion.errors import OptionError, UnsupportedError
from vermilion.hardware.options.lint import lint
from vermilion.hardware.options.option import OptionSet, Setting
from vermilion.hardware.options.vitisai import PROVIDER, RELEASES, release_row
from vermilion.hardware.options.vitisai_build import Request, build_options
from vermilion.version import is_older

DEVICES = ("phoenix", "strix", "krackan")


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["int8", "bf16"])
def test_what_is_built_passes_the_linter(device, release, precision) -> None:
    request = Request(device, release, precision, cache_dir="c", cache_key="k")
    must_fail = (
        (device == "krackan" and is_older(release, "1.4"))
        or (precision == "bf16" and device == "phoenix")
        or (precision == "bf16" and is_older(release, "1.4"))
    )
    if must_fail:
        with pytest.raises(UnsupportedError) as caught:
            build_options(request)
        assert caught.value.hint
        return
    built = build_options(request)
    given = OptionSet(PROVIDER, built.options, environment=built.environment, config=built.config)
    linted = lint(given, Setting(release, device, precision, "Windows"))
    is_left_out = device == "phoenix" and release == "1.8"
    known = {"vitisai.cache-key-unchecked", *["vitisai.xclbin-not-shipped"] * is_left_out}
    assert {p.id for p in linted.problems} <= known
    assert set(built.options) <= set(built.reasons) | {"cacheDir", "cacheKey"}


@pytest.mark.parametrize("release", ["1.7", "1.7.1", "1.8"])
def test_phoenix_rounds_as_its_quantizer_does(release: str) -> None:
    built = build_options(Request("phoenix", release, "int8"))
    assert built.options["xlnx_enable_py3_round"] == "0"
    assert "rounding" in built.reasons["xlnx_enable_py3_round"]
    assert ("leaves it out" in built.reasons["xclbin"]) == (release == "1.8")
    assert "xlnx_enable_py3_round" not in build_options(Request("phoenix", "1.6", "int8")).options
    assert "xlnx_enable_py3_round" not in build_options(Request("strix", release, "int8")).options


def test_the_traps_of_the_releases() -> None:
    assert build_options(Request("strix", "1.6", "int8")).options == {"target": "X2"}
    assert "no xclbin" in build_options(Request("strix", "1.6", "int8")).reasons
    phoenix = build_options(Request("phoenix", "1.8", "int8")).options
    assert phoenix["target"] == "X1"
    assert phoenix["xclbin"].endswith(r"phoenix\4x4.xclbin")
    old = build_options(Request("phoenix", "1.3", "int8", cache_dir="c"))
    assert old.options.keys() == {"config_file", "cacheDir"}
    assert old.environment["XLNX_VART_FIRMWARE"].endswith("1x4.xclbin")
    assert "target" not in (build_options(Request("strix", "1.5", "bf16")).config or {})
    newer = build_options(Request("strix", "1.7.1", "bf16", settings={"optimize_level": 3}))
    assert newer.config is not None
    assert newer.config["target"] == "VAIML"
    assert '"optimize_level": 3' in newer.config_text()


def test_linux_paths_and_refusals() -> None:
    with pytest.raises(UnsupportedError, match="Linux"):
        build_options(Request("phoenix", "1.8", "int8", system="Linux"))
    with pytest.raises(UnsupportedError, match="does not drive `gfx1100`"):
        build_options(Request("gfx1100", "1.8", "int8"))
    with pytest.raises(OptionError, match="no value of `encryption_key`"):
        build_options(Request("strix", "1.8", "int8", encryption_key="secret"))
    built = build_options(Request("strix", "1.5", "int8", installation="/opt/ryzen-ai"))
    assert built.options["xclbin"].startswith("/opt/ryzen-ai/voe")
    assert build_options(Request("ve2", "6.2", "bf16")).options["target"] == "VAIML"


@pytest.mark.parametrize(
    ("written", "row"),
    [("1.7.1", "1.7"), ("1.8.68.0", "1.8"), ("1.3.1", "1.3.1"), ("1.9", "1.8"), ("", "1.8")],
)
def test_release_rows(written: str, row: str) -> None:
    assert release_row(written) == row
