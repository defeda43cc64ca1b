"""Positions through two stages of edits, fixes in rounds, and files that are no source."""

from __future__ import annotations

from pathlib import Path

import pytest

from vermilion.errors import OptionError
from vermilion.hipify import files
from vermilion.hipify.files import SourceFile, collect, read_source
from vermilion.hipify.finding import Edit, Finding, OffsetMap, apply_edits, without_overlaps
from vermilion.hipify.hipify import Options, diff, hipify
from vermilion.hipify.process import original_position, process_text

FILE = SourceFile(Path("a.cu"), "a.cu")


def test_a_place_in_the_result_is_found_in_the_source() -> None:
    source = "cudaMallocHost(&p, 4); cudaMalloc(&q, __popc(__ballot(x))); cudaFree(warpSize);\n"
    result = process_text(source, FILE, fix=True)
    assert result.text == (
        "hipHostMalloc(&p, 4); hipMalloc(&q, __popcll(__ballot(x))); hipFree(warpSize);\n"
    )
    column = result.text.index("hipFree") + 1
    assert original_position(result, 1, column) == (1, source.index("cudaFree") + 1)
    assert original_position(result, 1, result.text.index("__ballot") + 1)[1] == (
        source.index("__ballot") + 1
    )


def test_of_overlapping_edits_the_first_stays() -> None:
    edits = [Edit(3, 5, "b"), Edit(1, 4, "a"), Edit(1, 4, "a"), Edit(4, 4, "+")]
    assert without_overlaps(edits) == [Edit(1, 4, "a"), Edit(4, 4, "+")]


def test_offsets_go_back_through_edits() -> None:
    edits = [Edit(2, 4, "long text"), Edit(6, 6, "++")]
    text = apply_edits("abcdefgh", edits)
    assert text == "ablong textef++gh"
    assert [OffsetMap(edits).before(i) for i in (0, 1, 2, 11, 12, 15, 16)] == [0, 1, 2, 4, 5, 6, 7]


def test_a_finding_of_a_fixed_text_points_into_the_source() -> None:
    source = "unsigned m = __ballot(p); int n = __popc(m); __nanosleep(warpSize);\n"
    result = process_text(source, FILE, fix=True)
    left = [f for f in result.findings if f.is_left]
    assert [(f.rule, f.column) for f in left] == [
        ("missing-intrinsic", source.index("__nanosleep") + 1)
    ]
    assert sum(f.fixed for f in result.findings) == 2


def test_a_silenced_place_is_not_fixed() -> None:
    source = "f(__popc(__ballot(p)));  // hipify: allow(vote-width) one wave of 32\n"
    result = process_text(source, FILE, fix=True)
    assert result.text == source
    assert result.silenced == 1


def test_a_mask_of_any_type_follows_its_vote() -> None:
    source = "auto m = __ballot_sync(0xffffffff, p); v = __shfl_sync(m, v, 0);\n"
    result = process_text(source, FILE, fix=True)
    assert result.text == (
        "auto m = (unsigned)(__ballot(p) >> (__lane_id() & 32)); "
        "v = __shfl_sync(__activemask(), v, 0, 32);\n"
    )
    assert not [finding for finding in result.findings if finding.is_left]


@pytest.fixture
def bad_tree(tmp_path: Path) -> Path:
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "good.cu").write_text("#include <cuda_runtime.h>\n", "utf-8")
    (tree / "comment.cu").write_text("int x;\n/* never ends", "utf-8")
    (tree / "string.cu").write_text('int x;\nconst char* s = "never;\n', "utf-8")
    (tree / "raw.cu").write_text('const char* s = R"x(never)y";\n', "utf-8")
    (tree / "sub" / "binary.cu").write_bytes(b"\x7fELF\0\0\0\0cudaMalloc")
    (tree / "sub" / "latin.cuh").write_bytes("// ok\n// größe\n".encode("latin-1"))
    (tree / "sub" / "utf16.cu").write_bytes("cudaFree(p);".encode("utf-16"))
    (tree / "link.cu").symlink_to(tree / "good.cu")
    (tree / "loop.cu").symlink_to(tree / "loop.cu")
    (tree / "dangling.h").symlink_to(tree / "nowhere.h")
    (tree / "sub" / "up").symlink_to(tree, target_is_directory=True)
    (tree / "empty.cu").write_bytes(b"")
    (tree / "notes.md").write_text("cudaMalloc", "utf-8")
    (tree / ".git").mkdir()
    (tree / ".git" / "hook.cu").write_text("cudaMalloc", "utf-8")
    with (tree / "huge.cu").open("wb") as file:
        file.truncate(files.MAX_SOURCE_BYTES + 1)
    return tree


def test_each_bad_file_has_one_clear_finding(bad_tree: Path, tmp_path: Path) -> None:
    output = tmp_path / "out"
    report = hipify([bad_tree], Options(output=output))
    assert not report.ok
    assert [(f.file, f.rule, f.line) for f in report.findings] == [
        ("comment.cu", "file-broken", 2),
        ("dangling.h", "file-symlink", 1),
        ("huge.cu", "file-huge", 1),
        ("link.cu", "file-symlink", 1),
        ("loop.cu", "file-symlink", 1),
        ("raw.cu", "file-broken", 1),
        ("string.cu", "file-broken", 2),
        ("sub/binary.cu", "file-binary", 1),
        ("sub/utf16.cu", "file-utf16", 1),
    ]
    assert all(f.hint for f in report.findings)
    written = sorted(p.relative_to(output).as_posix() for p in output.rglob("*") if p.is_file())
    assert written == ["empty.hip", "good.hip", "sub/latin.cuh"]
    assert (output / "sub/latin.cuh").read_bytes() == (bad_tree / "sub/latin.cuh").read_bytes()


def test_a_file_that_the_system_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.cu"
    path.write_text("int x;\n", "utf-8")

    def refuse(self: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    # Root may read everything, so the refusal is the operating system's only in this test.
    monkeypatch.setattr(Path, "read_bytes", refuse)
    found = read_source(SourceFile(path, "a.cu"))
    assert isinstance(found, Finding)
    assert (found.rule, found.message) == ("file-unreadable", "Permission denied")


def test_wrong_paths(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="there is no"):
        collect([tmp_path / "nothing"])
    with pytest.raises(OptionError, match="no source"):
        collect([tmp_path])
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x.cu").write_text("", "utf-8")
    with pytest.raises(OptionError, match=r"two sources are called `x\.cu`"):
        collect([tmp_path / "a", tmp_path / "b"])
    assert [f.name for f in collect([tmp_path])] == ["a/x.cu", "b/x.cu"]


def test_a_name_that_another_file_defines_is_not_unknown(tmp_path: Path) -> None:
    (tmp_path / "common.h").write_text("#define cudaCheck(x) check(x, __LINE__)\n", "utf-8")
    (tmp_path / "a.cu").write_text("void f() { cudaCheck(cudaFree(0)); cudaOdd(1); }\n", "utf-8")
    findings = hipify([tmp_path], Options()).findings
    assert [f.name for f in findings] == ["cudaOdd"]
    alone = hipify([tmp_path / "a.cu"], Options()).findings
    assert [f.name for f in alone] == ["cudaCheck", "cudaOdd"]


def test_an_output_that_a_second_run_would_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text("int x;\n", "utf-8")
    with pytest.raises(OptionError, match="lies in the folder of the sources"):
        hipify([tmp_path], Options(output=tmp_path / "hip"))
    (tmp_path / "a.hip").write_text("int x;\n", "utf-8")
    with pytest.raises(OptionError, match=r"`a\.cu` and `a\.hip` would both be written"):
        hipify([tmp_path], Options(output=tmp_path.parent / "other"))


def test_in_place_and_as_a_patch(tmp_path: Path) -> None:
    path = tmp_path / "a.cu"
    path.write_bytes(b"cudaFree(p);\r\nint x;")
    report = hipify([path], Options())
    assert diff(report) == (
        "--- a/a.cu\n+++ b/a.cu\n@@ -1,2 +1,2 @@\n-cudaFree(p);\r\n+hipFree(p);\r\n int x;\n"
        "\\ No newline at end of file\n"
    )
    assert path.read_bytes() == b"cudaFree(p);\r\nint x;", "nothing was asked to be written"
    assert hipify([path], Options(in_place=True)).written == (path,)
    assert path.read_bytes() == b"hipFree(p);\r\nint x;"
    assert hipify([path], Options(in_place=True)).written == ()


def test_options_that_contradict(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="contradict"):
        Options(output=tmp_path, in_place=True)
    with pytest.raises(OptionError, match="writes into a folder"):
        Options(build_files=True)


def test_a_large_tree_is_worked_on_in_parallel_with_the_same_result(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    code = "float f(float v) { cudaMalloc(&p, 4); return __shfl_down_sync(0xffffffff, v, 1); }"
    text = f"{code}  // {'large ' * 100}\n"
    for number in range(6):
        (tree / f"f{number}.cu").write_text(text * 600, "utf-8")
    seen: list[tuple[str, int, int]] = []
    together = hipify([tree], Options(jobs=2), lambda *step: seen.append(step))
    alone = hipify([tree], Options(jobs=1))
    assert together == alone
    assert seen[-1] == ("translating", 6, 6)
    assert len(together.findings) == 6 * 600 * 2
