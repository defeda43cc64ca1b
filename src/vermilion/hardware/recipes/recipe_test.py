"""Recipes: scripts that shells and Python accept, and a check that finds a CPU session."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from vermilion.errors import OptionError
from vermilion.hardware.recipes.recipe import (
    RELEASES,
    Wanted,
    find_release,
    make_recipe,
    write_recipe,
)


@pytest.mark.parametrize("release", RELEASES, ids=lambda one: one.rocm)
@pytest.mark.parametrize("project", ["onnxruntime", "genai"])
def test_every_script_is_one(release: object, project: str, tmp_path: Path) -> None:
    rocm = getattr(release, "rocm", "")
    for provider in getattr(release, "providers", ()):
        recipe = make_recipe(Wanted(project, rocm, ("gfx942", "gfx1100"), provider))
        for path in write_recipe(recipe, tmp_path):
            if path.suffix == ".sh":
                subprocess.run(["bash", "-n", str(path)], check=True)
            else:
                compile(path.read_text("utf-8"), path.name, "exec")
        script = recipe.files["build_onnxruntime.sh"]
        assert f"--branch {recipe.release.tag}" in script
        assert f"--use_{provider}" in script
        assert 'CMAKE_HIP_ARCHITECTURES="gfx942;gfx1100"' in script
        assert ("build_genai.sh" in recipe.files) is (project == "genai")


@pytest.mark.parametrize(
    ("rocm", "tag"),
    [("7.0.2", "v1.22.1"), ("7.14", "v1.23.2"), ("6.4.43482", "v1.21.0"), ("11", "v1.29.0")],
)
def test_a_release_between_rows_takes_the_older(rocm: str, tag: str) -> None:
    assert find_release(rocm).tag == tag


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (("onnxruntime", "7.2", ("gfx1100",), "rocm"), "it ended with 1.22"),
        (("onnxruntime", "4.0", ("gfx1100",), "migraphx"), "no recipe for ROCm 4.0"),
        (("onnxruntime", "new", ("gfx1100",), "migraphx"), "no release"),
        (("onnxruntime", "7.0", ("radeon",), "migraphx"), "names no GPUs"),
        (("torch", "7.0", ("gfx1100",), "migraphx"), "--build-recipe torch"),
    ],
)
def test_what_there_is_no_recipe_for(
    wanted: tuple[str, str, tuple[str, ...], str], words: str
) -> None:
    with pytest.raises(OptionError, match=words):
        make_recipe(Wanted(*wanted))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ((), 1, "MIGraphXExecutionProvider is built in"),
        (("--provider", "CPUExecutionProvider"), 0, "ok      its numbers are right"),
    ],
)
def test_the_check_tells_a_cpu_session_from_the_provider(
    words: tuple[str, ...], code: int, said: str, tmp_path: Path
) -> None:
    write_recipe(make_recipe(Wanted("onnxruntime", "7.0", ("gfx1100",))), tmp_path)
    done = subprocess.run(
        [sys.executable, "verify_build.py", *words], cwd=tmp_path, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert said in done.stdout
