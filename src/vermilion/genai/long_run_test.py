"""Ten thousand tokens in one process, and two threads at once: the memory stays, the text too."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import tiny_llama
import vermilion.genai as og

# Generators come and go, and take most at the end of their room: one in each window at least.
SETTLED, WHOLE, WINDOW, SAMPLE = 4_000, 10_000, 1_000, 100
# What a window may take beyond the one before: a token that leaked 60 bytes would be over this.
MOST_GROWTH_BYTES = 60 * WINDOW
# The same of Python's small objects, which it takes from its own arenas: one for two tokens.
MOST_GROWTH_OBJECTS = WINDOW // 2
# What the process may take beyond its allocators from the first window to the last. Large pages
# come 2 MiB at a time, some of them late; the KV cache of one text that stayed is more than this.
MOST_PAGES_BYTES = 16 << 20
STATUS = Path("/proc/self/status")


class Allocated(ctypes.Structure):
    """What glibc's `mallinfo2` returns, of all arenas (malloc/malloc.c, glibc 2.33 and later)."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    ]


def mallinfo() -> Callable[[], Allocated] | None:
    """Return glibc's count of allocated bytes; None where the C library has none."""
    function = getattr(ctypes.CDLL(None), "mallinfo2", None) if STATUS.exists() else None
    if function is not None:
        function.restype = Allocated
    return function


can_count = pytest.mark.skipif(mallinfo() is None, reason="this system has no mallinfo2")

pytestmark = pytest.mark.needs("avx2")


def allocated_bytes() -> int:
    """Return the bytes that `malloc` has given out, the mapped ones too."""
    gc.collect()
    count = mallinfo()
    assert count is not None
    now = count()
    return int(now.uordblks + now.hblkhd)


def own_bytes() -> int:
    """Return the memory that is this process's alone.

    Of a mapped file, new tokens touch new rows.
    """
    rows = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(rows["RssAnon"].split()[0]) * 1024


@pytest.fixture
def model(tmp_path: Path) -> og.Model:
    folder = tiny_llama.write_folder(tmp_path / "model", tiny_llama.Tiny(bits=4, end=4))
    return og.Model(folder, engine="native", cache=tmp_path / "cache")


def generated(model: og.Model, prompt: list[int], room: int) -> Iterator[int]:
    """Yield tokens without end: at the end of its room a text goes back, or a new one begins."""
    turn = 0
    while True:
        params = og.GeneratorParams(model)
        params.set_search_options(max_length=room, do_sample=False, min_length=room)
        generator = og.Generator(model, params)
        generator.append_tokens(prompt)
        for _ in range(2):  # from the beginning, and again from half its length
            while generator.token_count() < room:
                generator.generate_next_token()
                yield int(generator.get_next_tokens()[0])
            generator.rewind_to(room // 2)
        turn += 1
        prompt = [*prompt[1:], prompt[0]] if turn % 2 else prompt


def check_memory(model: og.Model, prompt: list[int], room: int) -> None:
    """Hold the most that each thousand tokens took against the thousand before.

    Counted by the allocator: pages come and go by more than a leak is. The middle of these steps:
    a leak is in all of them, another thread's memory in one or two.
    """
    tokens = generated(model, prompt, room)
    most = []
    for _ in range(WHOLE // WINDOW):
        taken = []
        for _ in range(WINDOW // SAMPLE):
            for _ in range(SAMPLE):
                next(tokens)
            taken.append((allocated_bytes(), sys.getallocatedblocks(), own_bytes()))
        most.append(np.max(taken, axis=0))
    later = np.array(most[SETTLED // WINDOW - 1 :])
    allocated, objects, _ = np.median(np.diff(later, axis=0), axis=0)
    assert allocated < MOST_GROWTH_BYTES, later
    assert objects < MOST_GROWTH_OBJECTS, later
    assert later[-1, 2] - later[0, 2] < MOST_PAGES_BYTES, later


@can_count
def test_memory_stays_over_ten_thousand_tokens(model: og.Model) -> None:
    check_memory(model, list(range(20, 44)), 250)


@can_count
@pytest.mark.parametrize(
    "leaked", [bytes, np.zeros], ids=["of a small object", "of the allocator's"]
)
def test_a_leak_at_each_token_is_seen(
    model: og.Model, monkeypatch: pytest.MonkeyPatch, leaked: Callable[[int], object]
) -> None:
    kept: list[object] = []
    once = og.Generator.generate_next_token

    def leaking(self: og.Generator) -> None:
        once(self)
        kept.append(leaked(70))

    monkeypatch.setattr(og.Generator, "generate_next_token", leaking)
    with pytest.raises(AssertionError):
        check_memory(model, list(range(20, 44)), 250)


def texts(model: og.Model, prompts: list[list[int]], count: int) -> list[list[int]]:
    found: list[list[int]] = []
    for prompt in prompts:
        tokens = generated(model, prompt, 200)
        found.append([next(tokens) for _ in range(count)])
    return found


def test_two_threads_give_what_each_gives_alone(model: og.Model) -> None:
    random = np.random.default_rng(0)
    prompts = [random.integers(20, 300, count).tolist() for count in (5, 31)]
    alone = texts(model, prompts, 400)
    assert alone[0] != alone[1]
    found: list[list[int]] = [[], []]

    def work(number: int) -> Callable[[], None]:
        def run() -> None:
            found[number] = texts(model, [prompts[number]], 400)[0]

        return run

    threads = [threading.Thread(target=work(number)) for number in range(2)]
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # as often as can be
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert found == alone
