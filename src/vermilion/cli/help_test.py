from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
import typer

from commands import Command, command_line
from vermilion.cli import SECTIONS, VERBS, build_app, main
from vermilion.cli.values import LANGUAGE_PEERS, METRICS, PEERS, SCHEMES, completion_of, values_of


@pytest.fixture
def vermilion(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> Command:
    return command_line(capfd, monkeypatch, tmp_path)


def verbs() -> Iterator[tuple[str, Any]]:
    """Yield every command, those of others among them, with its words."""

    def walk(command: Any, words: str) -> Iterator[tuple[str, Any]]:
        yield words, command
        for name, inner in getattr(command, "commands", {}).items():
            yield from walk(inner, f"{words} {name}".strip())

    yield from walk(typer.main.get_command(build_app()), "")


EVERY = dict(verbs())


def options(command: Any) -> list[Any]:
    return list(command.get_params(typer.Context(command, info_name="x")))


@pytest.mark.parametrize("columns", ["60", "80", "120"])
def test_every_help_fits(columns: str, vermilion: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    for words in EVERY:
        done = vermilion(*words.split(), "--help")
        assert (done.code, done.err) == (0, "")
        lines = done.out.splitlines()
        assert not [line for line in lines if line != line.rstrip()], words
        # A metavar is never broken.
        wide = [line for line in lines if len(line) > int(columns) and "|" not in line]
        assert not wide, words
        assert not re.search(r"[│╭]|<[a-z]+>", done.out), words


def test_verbs_stand_in_sections_by_what_people_do(vermilion: Command) -> None:
    out = vermilion("--help").out
    places = [out.index(f"{title}:\n") for title in SECTIONS]
    assert places == sorted(places)
    found = re.findall(r"^  ([a-z_]+)  +[A-Z]", out, re.MULTILINE)
    assert found == list(VERBS)


def test_a_flag_has_no_value_and_every_other_option_names_its_own() -> None:
    flags = 0
    for words, command in EVERY.items():
        for option in options(command):
            if option.param_type_name == "option" and words:
                is_flag = getattr(option, "is_flag", False)
                flags += is_flag
                assert is_flag or "--help" in option.opts or option.metavar, (words, option.name)
    assert flags > 60


def test_allowed_values_are_listed(vermilion: Command) -> None:
    words = vermilion("quantize", "--help").words
    assert all(f"{name}," in words or f"{name}." in words for name in SCHEMES)
    assert "--method mse|minmax|percentile|entropy" in words
    assert "--precision auto|fp32|bf16|int8|fp16|bfp16" in vermilion("compile", "--help").words


def test_values_are_those_that_the_code_takes() -> None:
    from vermilion.bench.engines import parse_engine
    from vermilion.hardware.targets.find import all_targets
    from vermilion.llm.speed_engines import PEERS as MEASURED
    from vermilion.quantize.formats import SCHEMES as KNOWN
    from vermilion.quantize.ranges import Method

    assert set(SCHEMES) == set(KNOWN)
    assert values_of("TARGET,…") == tuple(target.name for target in all_targets())
    assert values_of("GPU") == tuple(t.name for t in all_targets() if t.kind == "gpu")
    assert set(values_of("mse|minmax|percentile|entropy")) == set(get_args(Method))
    assert [parse_engine(name, "fp32").name for name in PEERS] == list(PEERS)
    measured = {name for name, peer in MEASURED.items() if not peer.is_variant}
    assert set(LANGUAGE_PEERS) == measured | {"installed", "none"}
    assert values_of("METRIC|MODULE:FUNCTION") == METRICS
    assert values_of("NAME=FILE.npy|FILE.npz|FOLDER") == values_of("DIR") == ()
    assert completion_of("FILE.npz") is None


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("vermilion compile m.onnx --target st", {"strix"}),
        ("vermilion compile m.onnx --target gfx942,gfx90", {"gfx942,gfx90a"}),
        ("vermilion quantize m.onnx --scheme mxfp6", {"mxfp6e2m3", "mxfp6e3m2"}),
        ("vermilion compile m.onnx --precision b", {"bf16", "bfp16"}),
        ("vermilion inspect m.onnx -t a", {"all"}),
        ("vermilion bench m.onnx --against ort,o", {"ort,openvino"}),
        ("vermilion llm b", {"build", "bench"}),
        ("vermilion dev", {"devices"}),
        ("vermilion devices --t", {"--targets"}),
        ("vermilion compile mod", set()),
    ],
)
def test_the_shell_completes(
    line: str,
    offered: set[str],
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("_VERMILION_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", line)
    monkeypatch.setenv("COMP_CWORD", str(len(line.split()) - 1))
    with pytest.raises(SystemExit) as end:
        main([])
    assert end.value.code == 0
    assert set(capfd.readouterr().out.split()) == offered
