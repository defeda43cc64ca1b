"""Names of the project's own that only look like CUDA's."""

from __future__ import annotations

from pathlib import Path

import pytest

from vermilion.hipify.declared import own_names
from vermilion.hipify.hipify import Options, hipify
from vermilion.hipify.tokens import tokenize
from vermilion.hipify.translate import translate


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("static float *first, *cudaDev;", {"cudaDev"}),
        ("int a = f(1, 2), cudaN = 3;", {"cudaN"}),
        ("for (int cudaI = 0, cudaE = n; cudaI < cudaE;) {}", {"cudaI", "cudaE"}),
        ("template <class cudaT, int cudaN = 3> struct S {};", {"cudaT", "cudaN"}),
        ("template <typename... cudaTs> void f(cudaTs... cudaXs) {}", {"cudaTs"}),
        ("enum class K : int { cudaA, cudaB = 2, };", {"cudaA", "cudaB"}),
        ("typedef struct { int a; } cudaThing;", {"cudaThing"}),
        ("int (*cudaFn)(int);", {"cudaFn"}),
        ("#define CUDA_DO(cudaArg, b) cudaArg + b\n", {"CUDA_DO", "cudaArg"}),
        ("std::vector<int> cudaList(3);", {"cudaList"}),
        ("int cudaA{1}, cudaB(2), *cudaC{}, cudaD;", {"cudaA", "cudaB", "cudaC", "cudaD"}),
        ("struct S { int cudaA : 3, cudaB : 4; };", {"cudaA", "cudaB"}),
        ("for (const auto& [cudaK, cudaV] : m) {}", {"cudaK", "cudaV"}),
        ("void f() { goto cudaEnd; cudaEnd: return; }", {"cudaEnd"}),
    ],
)
def test_declarations(source: str, names: set[str]) -> None:
    assert names <= own_names(tokenize(source))


@pytest.mark.parametrize(
    "source",
    ["x = a * cudaNew(1);", "return cudaNew(1);", "if (e > cudaNew(1)) {}", "f(a, cudaNew);",
     "auto p = new cudaNew(2);", "y = c ? a : cudaNew(1);",
     "void f() { int a{1}; } g(b, cudaNew);", "x = { a, cudaNew };", "auto f = [cudaNew] {};"],
)  # fmt: skip
def test_uses_are_no_declarations(source: str) -> None:
    assert "cudaNew" not in own_names(tokenize(source))


@pytest.mark.parametrize(
    "source",
    ["Scene::cudaReset(); void Scene::cudaReset() {}", "#define R(x) my_##cudaThing##x\n"],
)
def test_what_is_qualified_or_pasted_is_the_projects(source: str) -> None:
    done = translate(source)
    assert done.text == source
    assert not done.findings


def test_names_and_headers_of_the_project_by_path(tmp_path: Path) -> None:
    (tmp_path / "src" / "cuda").mkdir(parents=True)
    (tmp_path / "include" / "lib" / "cuda").mkdir(parents=True)
    (tmp_path / "src" / "cuda" / "own.cuh").write_text("inline int cudaTwice(int x) { return x; }")
    (tmp_path / "include" / "lib" / "cuda" / "x.h").write_text("#define cudaOwn(x) x\n")
    (tmp_path / "src" / "cuda_runtime.h").write_text("// ours\n")
    source = tmp_path / "src" / "a.cu"
    source.write_text(
        '#include "cuda_runtime.h"\n#include "cuda/own.cuh"\n#include <lib/cuda/x.h>\n'
        "int y = cudaTwice(cudaOwn(1));\n"
    )
    report = hipify([tmp_path], Options(output=tmp_path.parent / "out"))
    assert not report.findings
    (done,) = [one for one in report.files if one.file.name == "src/a.cu"]
    assert done.text == source.read_text()
    alone = hipify([source], Options(includes=(tmp_path / "include",)))
    assert not alone.findings
    assert [f.name for f in hipify([source], Options()).findings] == ["cudaOwn"]
