"""Which taps of a kernel lie in the image, against the definition."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from vermilion.codegen.window import Window, live_share

WINDOWS = st.builds(
    Window,
    taps=st.integers(1, 9),
    stride=st.integers(1, 3),
    dilation=st.integers(1, 7),
    before=st.integers(0, 20),
    size=st.integers(1, 20),
)


def reads_image(window: Window, output: int, tap: int) -> bool:
    at = output * window.stride + tap * window.dilation - window.before
    return 0 <= at < window.size


@settings(max_examples=300, deadline=None)
@given(window=WINDOWS, first=st.integers(0, 12), outputs=st.integers(1, 6))
def test_what_lies_outside_of_the_live_taps_reads_the_border(
    window: Window, first: int, outputs: int
) -> None:
    start, stop = window.live(first, outputs)
    assert 0 <= start <= stop <= window.taps
    live = [
        tap
        for tap in range(window.taps)
        if any(reads_image(window, first + at, tap) for at in range(outputs))
    ]
    assert set(live) <= set(range(start, stop))
    if outputs == 1:
        assert live == list(range(start, stop))


def test_the_share_is_that_of_the_patches() -> None:
    atrous = Window(3, 1, 12, 12, 20)
    assert live_share(atrous, 20, 4) == (8 * 2 + 4 * 1 + 8 * 2) / (3 * 20)
    assert live_share(atrous, 20, 20) == 1.0
    assert live_share(None, 20, 4) == 1.0
