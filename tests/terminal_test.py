"""What every verb prints on terminals of 80 and 120 columns, beside what it printed before.

Verbs run in this process, on small models; what costs seconds is drawn from results that are made
here. Figures that differ from run to run are masked. `--update-golden` writes the files anew.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

import llm_folders
import terminal_results
from models import Net, conv, small_cnn
from pages import ROOT
from vermilion.cli import VERBS, build_app, main, verb
from vermilion.cli.output import Result, emit

WIDTHS = (80, 120)
GOLDEN = Path(__file__).parent / "terminal"
# What a run may print that another does not, by kind.
MASKS = {
    "digest": (r"\b[0-9a-f]{16,64}\b", "DIGEST"),
    "date": (r"\b20\d\d-\d\d-\d\d(?: \d\d:\d\d)?\b", "DATE"),
    "time": (r" *\d[\d,]*\.\d+(?= ?(?:ms|s|second)\b)", " TIME"),
    "figure": (r" *(?<![\w.])\d[\d,]*\.\d+(?:e-?\d+)?", " FIGURE"),
    "machine": (
        r"\b(?:zen\d|znver\d|x86-64-v[\w-]+)(?: \((?:[^()]|\([^()]*\))*\))?|\b\d+ threads?\b",
        "CPU",
    ),
    "size": (r"\b\d+(?:\.\d+)? [KM]?B\b", "SIZE"),
}


@dataclass(frozen=True)
class Case:
    """A command line; kinds of figures that differ; the exit code."""

    words: str
    masks: tuple[str, ...] = ()
    code: int = 0
    is_script: bool = False  # whose lines are as wide as they are
    has_golden: bool = True  # not of lists of chips: a new chip is one row in one file


@dataclass
class Shown:
    """What a verb showed at each width, and the keys of its JSON."""

    texts: dict[int, str] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)


COMPILED = ("machine", "time", "digest", "figure")
# In this order, each in the folder that those before it left.
CASES = {
    "devices-targets": Case("devices --targets", has_golden=False),
    "inspect": Case("inspect m.onnx"),
    "inspect-target": Case("inspect odd.onnx --target strix", ("time",)),
    "inspect-all": Case("inspect odd.onnx --target all", has_golden=False),
    "inspect-nodes": Case("inspect odd.onnx --target strix --nodes", ("time",)),
    "compile": Case("compile m.onnx --cache-dir cache --cache-key mine", COMPILED),
    "compile-npu": Case("compile odd.onnx --cache-dir cache -t strix --cache-key npu", COMPILED),
    "compile-gate": Case(
        "compile odd.onnx --cache-dir cache -t strix --cache-key npu --min-offload operators=100%",
        COMPILED, 1,
    ),
    "compile-file": Case(
        "compile m.onnx --cache-dir cache -o m.rai --cache-key mine", COMPILED
    ),
    "run": Case("run m.onnx --cache-dir cache --input x.npz --output out.npz", COMPILED),
    "run-schema": Case("run m.onnx --schema"),
    "quantize": Case(
        "quantize m.onnx --scheme xint8 --calib random -n 2 -o int8.onnx",
        ("time", "size", "figure"),
    ),
    "compare": Case(
        "compare m.onnx int8.onnx --input x.npz --runs 1 --cache-dir cache", ("figure", "machine")
    ),
    "view": Case("view m.onnx int8.onnx -o page.html", ("size",)),
    "memory": Case("memory m.onnx --batch 1,8"),
    "optimize": Case("optimize m.onnx -o fused.onnx", ("time", "figure")),
    "cache-ls": Case("cache ls --cache-dir cache", ("digest", "date", "size", "machine")),
    "cache-verify": Case("cache verify --cache-dir cache"),
    "cache-prune": Case("cache prune --all --cache-dir cache", ("digest", "size")),
    "trust-new": Case("trust new key.pem", ("digest",)),
    "trust-add": Case("trust add key.pem.pub --name me", ("digest",)),
    "trust-list": Case("trust list", ("digest",)),
    "trust-remove": Case("trust remove me", ("digest",)),
    "doctor-suggest": Case("doctor --suggest --device strix --precision int8"),
    "doctor-options": Case("doctor --options options.json", (), 1),
    "doctor-recipe": Case(
        "doctor --build-recipe onnxruntime --rocm 7.0 --gfx gfx1100", is_script=True
    ),
    "hipify": Case("hipify kernel.cu -o hip", (), 1),
    "llm-ops": Case("llm ops config.json"),
    "llm-config": Case("llm config oga"),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with what the command lines name."""
    folder = tmp_path_factory.mktemp("terminal")
    ir.save(small_cnn(bn=True), folder / "m.onnx")
    net = Net("odd", seed=7)
    x = net.op("Softplus", net.input("input", (1, 8, 16, 16)), name="/a/long/scope/of/a/node/odd")
    net.output(conv(net, x, "conv", (8, 16), 3), "output", (1, 16, 16, 16))
    ir.save(net.model(), folder / "odd.onnx")
    np.savez(folder / "x.npz", input=np.ones((1, 3, 16, 16), np.float32))
    (folder / "options.json").write_text(
        '{"provider": "VitisAIExecutionProvider", "options": {"confg_file": "a.json"}}'
    )
    (folder / "kernel.cu").write_text(
        "__global__ void k(float *a) { __shfl_xor_sync(~0u, *a, 1); }\n"
    )
    llm_folders.config_file(folder, **llm_folders.SMOLLM2)
    (folder / "oga").mkdir()
    llm_folders.oga_folder(folder / "oga")
    return folder


@pytest.fixture(scope="module")
def shown(folder: Path) -> Iterator[Callable[[str], Shown]]:
    """Return what carries out the cases in their order, up to the one that is wanted."""
    done: dict[str, Shown] = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        # Calibration keeps code there, unless another test of this process has made it before.
        patch.setenv("VERMILION_CACHE", "kept")
        patch.setenv("XDG_DATA_HOME", str(folder / "data"))
        patch.delenv("NO_COLOR", raising=False)

        def show(name: str) -> Shown:
            for each in CASES:
                if each not in done:
                    done[each] = carried_out(CASES[each], patch)
                if each == name:
                    break
            return done[name]

        yield show


def carried_out(case: Case, patch: pytest.MonkeyPatch) -> Shown:
    """Carry out a case; its result is printed at every width."""
    found = Shown()

    def at_every_width(name: str, result: Result, **_: Any) -> None:
        found.keys = set(result.data)
        for width in WIDTHS:
            patch.setenv("COLUMNS", str(width))
            out = io.StringIO()
            emit(name, result, as_json=False, out=out)
            found.texts[width] = out.getvalue()

    patch.setattr(verb, "emit", at_every_width)
    code = main(case.words.split())
    assert code == case.code, case.words
    return found


def masked(text: str, kinds: tuple[str, ...]) -> str:
    """Return a text with masks for what differs, and then with single blanks."""
    for kind in kinds:
        pattern, word = MASKS[kind]
        text = re.sub(pattern, word, text)
    return re.sub(r"(?<=\S) +", " ", text) if kinds else text


def check_golden(name: str, texts: dict[int, str], update: bool) -> None:
    for width, text in texts.items():
        file = GOLDEN / f"{name}.{width}.txt"
        if update:
            GOLDEN.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        assert file.exists(), f"there is no {file.name}: run with --update-golden and look at it"
        kept = file.read_text(encoding="utf-8")
        if name in CASES and "machine" in CASES[name].masks:  # a longer name breaks lines elsewhere
            text, kept = " ".join(text.split()), " ".join(kept.split())
        assert text == kept, f"--update-golden if {file.name} is right"


def check_lines(texts: dict[int, str]) -> None:
    """Check that nothing is cut, broken or padded, whatever was printed."""
    wide = texts[WIDTHS[-1]].split()
    for width, text in texts.items():
        for line in text.splitlines():
            assert line == line.rstrip()
            # A line that is longer holds a path or a digest, or is one word.
            long = "/" in line or re.search(MASKS["digest"][0], line) or " " not in line.strip()
            assert len(line) <= width or long, (width, line)
        assert not re.search(r"\w…", text.replace("…\n", "\n")) or "--" in text
        numbers = re.findall(r"(?<![\w.])\d[\d.,]*\d(?![\w.])", text)
        assert set(numbers) <= set(re.findall(r"(?<![\w.])\d[\d.,]*\d(?![\w.])", " ".join(wide)))


@pytest.mark.parametrize("name", CASES)
def test_a_verb_prints_what_it_printed(
    name: str, shown: Callable[[str], Shown], folder: Path, request: pytest.FixtureRequest
) -> None:
    found = shown(name)
    if not CASES[name].is_script:
        check_lines(found.texts)
    texts = {
        width: masked(text.replace(str(folder), "FOLDER"), CASES[name].masks)
        for width, text in found.texts.items()
    }
    if CASES[name].has_golden:
        check_golden(name, texts, request.config.getoption("--update-golden"))


@pytest.mark.parametrize("name", terminal_results.RESULTS)
def test_a_result_is_drawn_as_it_was(
    name: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    texts = {}
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        out = io.StringIO()
        emit(name, Result({}, terminal_results.RESULTS[name]), as_json=False, out=out)
        texts[width] = out.getvalue()
    check_lines(texts)
    check_golden(name, texts, request.config.getoption("--update-golden"))


def test_the_first_page_of_help(
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
) -> None:
    texts = {}
    for width in WIDTHS:
        monkeypatch.setenv("COLUMNS", str(width))
        assert main(["--help"]) == 0
        texts[width] = capfd.readouterr().out
    check_golden("help", texts, request.config.getoption("--update-golden"))


# Printed by verbs that other tests carry out: they build or run language models, or serve.
ELSEWHERE = {
    "hello", "clib", "llm build", "llm chat", "llm compile", "onnx_utils vaiml", "model_generate",
    "serve", "top",
}  # fmt: skip


def test_every_verb_is_here() -> None:
    import typer

    root: Any = typer.main.get_command(build_app())
    every = {name for name in VERBS if not hasattr(root.commands[name], "commands")}
    for name, command in root.commands.items():
        every |= {f"{name} {inner}" for inner in getattr(command, "commands", {})}
    here = {" ".join(case.words.split()[:2]) for case in CASES.values()}
    here |= {case.words.split()[0] for case in CASES.values()}
    here |= {name.replace("-", " ") for name in terminal_results.RESULTS}
    assert every - here == ELSEWHERE


ROW = re.compile(r"^\| (`[^|]*) \| (.*) \|$", re.MULTILINE)


def documented(verb_name: str) -> tuple[set[str], set[str]]:
    """Return the keys that docs/json.md says are always there, and those that may be."""
    page = (ROOT / "docs" / "json.md").read_text(encoding="utf-8")
    section = page.partition(f"\n## {verb_name}\n")[2].partition("\n## ")[0]
    always, some = set(), set()
    for keys, meaning in ROW.findall(section):
        (some if "only with" in meaning or "only if" in meaning else always).update(
            re.findall(r"`([a-z_]+)`", keys)
        )
    return always, some


@pytest.mark.parametrize("name", CASES)
def test_the_json_has_the_documented_keys(name: str, shown: Callable[[str], Shown]) -> None:
    words = CASES[name].words.split()
    verb_name = " ".join(words[:2]) if words[0] in ("cache", "trust", "llm") else words[0]
    always, some = documented("trust add" if verb_name == "trust remove" else verb_name)
    keys = shown(name).keys
    assert always, verb_name
    assert keys <= always | some
    # What is alone in its object stands for the rest.
    assert keys >= always or not keys & always or name in ("run-schema", "devices-targets")
