from __future__ import annotations

import threading
import time

from vermilion.bench.machine import WINDOW_S, WINDOWS_IN_A_ROW, wait_until_quiet


class Spinner:
    """A thread that uses a core until it is told to stop, or for `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._end = time.perf_counter() + seconds
        self._thread = threading.Thread(target=self._spin)
        self._thread.start()

    def _spin(self) -> None:
        while time.perf_counter() < self._end:
            pass

    @property
    def is_spinning(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()


def test_an_idle_process_is_quiet_after_the_windows_that_prove_it() -> None:
    begin = time.perf_counter()
    assert wait_until_quiet() is not None
    assert time.perf_counter() - begin >= WINDOW_S * WINDOWS_IN_A_ROW


def test_a_spinning_thread_is_waited_for() -> None:
    spinner = Spinner(0.15)
    quiet_after_ms = wait_until_quiet()
    assert quiet_after_ms is not None
    assert quiet_after_ms > 0.0
    assert not spinner.is_spinning
    spinner.join()


def test_one_that_never_stops_is_given_up_on() -> None:
    spinner = Spinner(0.5)
    assert wait_until_quiet(give_up_s=0.1) is None
    spinner.join()
