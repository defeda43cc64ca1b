"""Tests of the literal run: results, limits, crashes, and that nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import psutil
import pytest

from loop_models import ENDLESS, ONES, loop, model_of
from vermilion.errors import UnsupportedError
from vermilion.ir.limits import Limits, MemoryBoundError, TimeLimitError
from vermilion.ir.literal.child import CrashError, the_child
from vermilion.ir.literal.engine import INTERPRETER, NOT_OPTIMIZED
from vermilion.ir.literal.run import open_literally, run_literally
from vermilion.ir.literal.vouch import unvouched

SMALL = Limits(memory_bytes=512 << 20)

# For scripts in a process of their own: the installed package has no tests.
TESTS = Path(__file__).parents[4] / "tests"


def test_a_plain_model_runs_here_and_several_times() -> None:
    opened = open_literally(
        model_of("g (float[2] x) => (float[2] y, float[2] z) {y=Add(x,x) z=Neg(y)}")
    )
    assert not opened.in_child
    for number in (1.0, 2.0):
        given = {"x": np.full(2, number, np.float32)}
        assert opened.run(given, ["z"])["z"].tolist() == [-2 * number] * 2
        assert sorted(opened.run(given)) == ["y", "z"]
    assert opened.engine == NOT_OPTIMIZED


def test_a_loop_runs_in_the_child_and_gives_the_same() -> None:
    opened = open_literally(loop("4", "w = Add (v, v)"))
    assert opened.in_child
    assert opened.engine == NOT_OPTIMIZED
    assert opened.run(ONES)["y"].tolist() == [16.0] * 3
    assert opened.described[0].name == "y"


def test_an_endless_loop_is_stopped_and_not_tried_again() -> None:
    model = loop(ENDLESS)
    waited: list[int] = []

    def progress(stage: str, done: int, total: int) -> None:
        waited.append(done)

    begin = time.monotonic()
    with pytest.raises(TimeLimitError, match="longer than 2 s"):
        run_literally(model, ONES, limits=Limits(loop_seconds=2), progress=progress)
    assert waited
    with pytest.raises(TimeLimitError, match="longer than 2 s"):
        run_literally(model.clone(), {"x": np.zeros(3, np.float32)})
    assert time.monotonic() - begin < 30
    assert run_literally(loop("2"), ONES).outputs["y"].tolist() == [1.0] * 3


GROWING = {
    "Range": "g (int64 n) => (int64 y) <int64 a = {0}, int64 b = {1}> { r = Range (a, n, b)",
    "Tile": "g (int64[1] n) => (float y) <float[1] f = {1.0}> { r = Tile (f, n)",
    "Expand": "g (int64[1] n) => (float y) <float[1] f = {1.0}> { r = Expand (f, n)",
    "ConstantOfShape": "g (int64[1] n) => (float y) { r = ConstantOfShape (n)",
}


@pytest.mark.parametrize("operator", GROWING)
def test_what_does_not_fit_into_memory_is_refused_in_words(operator: str) -> None:
    model = model_of(GROWING[operator] + " y = ReduceMax <keepdims = 0> (r) }")
    assert operator in unvouched(model)
    for count in (3, 1 << 29, 1 << 40, 1 << 62):
        # Otherwise it is not tried again after the first.
        model.graph.node(0).name = f"{operator}-{count}"
        given = {"n": np.asarray(count if operator == "Range" else [count])}
        if count == 3:
            most = {"Range": 2, "ConstantOfShape": 0}.get(operator, 1)
            assert run_literally(model, given, limits=SMALL).outputs["y"] == most
            continue
        with pytest.raises((MemoryBoundError, UnsupportedError)) as caught:
            run_literally(model, given, limits=SMALL)
        assert not isinstance(caught.value, CrashError), caught.value


def test_a_loop_that_collects_is_stopped_at_its_memory() -> None:
    model = model_of(
        f"""g (float[99999] x) => (float[?, 99999] y)
        <int64 n = {{{ENDLESS}}}, bool c = {{1}}> {{
          y = Loop (n, c) <body = b (int64 i, bool go) => (bool on, float[99999] w)
            {{ on = Identity (go) w = Neg (x) }}>
        }}"""
    )
    given = {"x": np.ones(99999, np.float32)}
    with pytest.raises(MemoryBoundError, match=r"more than 0\.5 GB"):
        run_literally(model, given, limits=SMALL)


def test_scan_sequences_and_texts_cross() -> None:
    scan = model_of(
        """g (float[4, 2] x, float[2] s) => (float[2] last, float[4, 2] all) {
          last, all = Scan <num_scan_inputs = 1, body = b (float[2] a, float[2] v)
            => (float[2] c, float[2] d) { c = Add (a, v) d = Identity (c) }> (s, x)
        }"""
    )
    given = {"x": np.ones((4, 2), np.float32), "s": np.zeros(2, np.float32)}
    assert run_literally(scan, given).outputs["all"][:, 0].tolist() == [1.0, 2.0, 3.0, 4.0]
    several = model_of("g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct (x, x) }")
    found = run_literally(several, {"x": np.ones(2, np.float32)}).outputs["y"]
    assert [list(array) for array in found] == [[1.0, 1.0], [1.0, 1.0]]
    texts = model_of("g (string[2] x) => (string[4] y) { y = StringNormalizer (x) }")
    words = np.array(["Ä", "b\n"], dtype=object)
    assert run_literally(texts, {"x": words}).outputs["y"].tolist() == ["Ä", "b\n"]


def test_a_crash_is_an_error_and_the_next_model_runs() -> None:
    opened = open_literally(loop("3"))
    child = the_child()
    assert child.process is not None
    os.kill(child.process, signal.SIGSEGV)
    assert opened.run(ONES)["y"].tolist() == [1.0] * 3
    busy = loop(ENDLESS, "w = Add (v, v)")
    killer = subprocess.Popen(
        [sys.executable, "-c", KILL_CHILD_OF, str(os.getpid())], stdout=subprocess.PIPE
    )
    with pytest.raises(CrashError, match=r"crashed \(SIGSEGV"):
        run_literally(busy, ONES, limits=Limits(loop_seconds=6))
    killer.kill()
    killer.wait()
    assert opened.run(ONES)["y"].tolist() == [1.0] * 3


def test_bfloat16_is_interpreted() -> None:
    model = model_of(
        """g (bfloat16[2] x) => (bfloat16[2] y)
        <float[2] w = {1.0, 2.0}> { v = Cast <to = 16> (w) y = Mul (x, v) }"""
    )
    opened = open_literally(model)
    assert (opened.engine, opened.in_child) == (INTERPRETER, True)
    x = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    found = opened.run({"x": x})["y"]
    assert found.dtype == x.dtype
    assert found.tolist() == [1.5, -4.0]


KILL_CHILD_OF = textwrap.dedent(
    """
    import os, psutil, signal, sys, time
    parent = psutil.Process(int(sys.argv[1]))
    while True:  # first ONNX Runtime is at work, then the interpreter
        time.sleep(0.5)
        for child in parent.children():
            if "vermilion.ir.literal.child" in " ".join(child.cmdline()):
                os.kill(child.pid, signal.SIGSEGV)
    """
)


def test_a_hundred_runs_leave_nothing_behind() -> None:
    child = the_child()
    run_literally(loop("3"), ONES)
    assert child.process is not None
    process = psutil.Process(child.process)
    lie_there = {path.name for path in child.folder.iterdir()}  # of models that others hold
    sizes = []
    for turn in range(100):
        run_literally(loop("3"), ONES)
        if turn % 50 == 49:
            sizes.append(process.memory_info().rss)
    assert sizes[1] - sizes[0] < 8 << 20
    assert {path.name for path in child.folder.iterdir()} <= lie_there


PARENT = textwrap.dedent(
    """
    import signal, sys, time
    import numpy as np
    from vermilion.ir.limits import Limits
    from vermilion.ir.literal.child import the_child
    from vermilion.ir.literal.run import run_literally
    from loop_models import ENDLESS, ONES, loop
    # A shell that starts this in the background has it ignore Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    run_literally(loop("2"), ONES)
    print(the_child().process, the_child().folder, flush=True)
    run_literally(loop(ENDLESS), ONES, limits=Limits(loop_seconds=100))
    """
)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_child_ends_with_its_parent(how: signal.Signals) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(TESTS)},
    )
    assert parent.stdout is not None
    number, folder = parent.stdout.readline().split()
    child = psutil.Process(int(number))
    time.sleep(1)
    if how == signal.SIGINT:
        os.killpg(parent.pid, how)  # as a terminal does
    else:
        parent.send_signal(how)
    parent.wait(20)
    psutil.wait_procs([child], timeout=10)
    assert not child.is_running()
    assert not Path(folder).exists()


def test_a_process_that_was_forked_has_a_child_of_its_own() -> None:
    script = textwrap.dedent(
        """
        import os, sys
        from vermilion.ir.literal.child import the_child
        from vermilion.ir.literal.run import run_literally
        from loop_models import ONES, loop
        run_literally(loop("2"), ONES)
        first = the_child().process
        if os.fork() == 0:
            run_literally(loop("3"), ONES)
            print(the_child().process != first)
            sys.stdout.flush()
            os._exit(0)  # ONNX Runtime's own end waits for threads that were not forked
        os.wait()
        run_literally(loop("3"), ONES)
        print(the_child().process == first)
        """
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(TESTS)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["True", "True"], done.stderr


def test_what_the_engine_prints_stays_out_of_the_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(UnsupportedError):
        run_literally(loop("3", "w = Reshape (v, n) "), ONES)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("kind", "gates"), [("LSTM", 4), ("GRU", 3), ("RNN", 1)])
def test_a_layout_that_onnx_runtime_does_not_support_is_interpreted(kind: str, gates: int) -> None:
    model = model_of(
        f"g (float[2,3,4] x, float[1,{gates},4] w, float[1,{gates},1] r) => (float[2,3,1,1] y)"
        f" {{ y = {kind} <hidden_size = 1, layout = 1> (x, w, r) }}"
    )
    given = {
        "x": np.ones((2, 3, 4), np.float32), "w": np.ones((1, gates, 4), np.float32),
        "r": np.ones((1, gates, 1), np.float32),
    }  # fmt: skip
    opened = open_literally(model)
    assert opened.engine == INTERPRETER
    assert opened.run(given)["y"].shape == (2, 3, 1, 1)


def test_a_mask_that_onnx_runtime_does_not_broadcast_runs_in_the_interpreter() -> None:
    model = ir.from_onnx_text(
        '<ir_version: 10, opset_import: ["": 23]> g (float[1,2,3,4] q, float[1,2,3,4] k,'
        " bool[1,1,1,3] m) => (float[1,2,3,4] y) { y = Attention(q, k, k, m) }"
    )
    random = np.random.default_rng(0)
    given = {name: random.normal(size=(1, 2, 3, 4)).astype(np.float32) for name in ("q", "k")}
    given["m"] = np.array([True, False, True]).reshape(1, 1, 1, 3)
    found = run_literally(model, given)
    assert found.engine == INTERPRETER
    scores = given["q"] @ given["k"].swapaxes(2, 3) / 2.0
    weights = np.exp(scores) * given["m"]
    wanted = weights / weights.sum(-1, keepdims=True) @ given["k"]
    np.testing.assert_allclose(found.outputs["y"], wanted, rtol=1e-5, atol=1e-6)


def test_products_of_the_largest_bytes_are_exact_on_every_processor() -> None:
    """Without VNNI ONNX Runtime adds pairs of them in 16 bits."""
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 8, opset_import: ["" : 17]>'
            "g (uint8[3,70] a, int8[70,20] b) => (int32[3,20] y) { y = MatMulInteger (a, b) }"
        )
    )
    for factor in (127, -128):
        given = {"a": np.full((3, 70), 255, np.uint8), "b": np.full((70, 20), factor, np.int8)}
        found = run_literally(model, given).outputs["y"]
        np.testing.assert_array_equal(found, np.full((3, 20), 70 * 255 * factor))
