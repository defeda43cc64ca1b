"""A language model that is served: a thread that advances its process, and who waits for tokens."""

from __future__ import annotations

import asyncio
import secrets
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vermilion.errors import DeviceError, VermilionError
from vermilion.process.child import Child, ChildError
from vermilion.serve.metrics import Metrics
from vermilion.serve.network import LOOK_S, MOST_DEATHS, OPEN_LIMIT_S, YOUNG_S
from vermilion.serve.refusals import (
    FaultError,
    NotReadyError,
    QueueFullError,
    TooLateError,
    WorkerLostError,
    WrongRequestError,
)
from vermilion.serve.settings import Settings

Event = dict[str, Any]

_WORKER = ("vermilion.serve.language_worker",)
# How often a process may end while a request is the only one in it: then it is to blame.
_MOST_TRIES = 2


@dataclass(eq=False)
class Stream:
    """A request, and what has come of it. Events are handed over in the loop's thread."""

    asked: Mapping[str, Any]
    loop: asyncio.AbstractEventLoop
    request: str = field(default_factory=lambda: secrets.token_hex(8))
    events: asyncio.Queue[Event | VermilionError] = field(default_factory=asyncio.Queue)
    made: dict[int, list[int]] = field(default_factory=dict)
    begin: float = field(default_factory=time.monotonic)
    writing: int = 1  # texts that have not ended
    is_sent: bool = False
    is_suspect: bool = False
    tries: int = 0

    def message(self) -> dict[str, Any]:
        """Return what the process is told, with the tokens that were written before."""
        wish = dict(self.asked["wish"])
        if self.made:
            count = max(self.made) + 1
            wish["already"] = [self.made.get(choice, []) for choice in range(count)]
        return {**self.asked, "wish": wish, "request": self.request}


class LanguageModel:
    """A language model in a process of its own."""

    kind = "language"

    def __init__(self, name: str, path: Path, settings: Settings, metrics: Metrics) -> None:
        """Open it. Raises: VermilionError of the kind that says why it cannot be."""
        self.name, self._path, self._settings, self._metrics = name, path, settings, metrics
        self.failure = ""
        self._changed = threading.Condition()
        self._streams: dict[str, Stream] = {}
        self._left: list[str] = []
        self._running = 0
        self._is_closing = False
        self._starting: Child | None = None
        self._folder = tempfile.TemporaryDirectory(prefix="vermilion-serve-")
        try:
            self._child, self.about = self._open()
        except BaseException:
            self._folder.cleanup()
            raise
        self._thread = threading.Thread(target=self._live, name=name, daemon=True)
        self._thread.start()

    @property
    def is_open(self) -> bool:
        """Whether it takes requests; while its process does not live, they wait for the next."""
        return not (self._is_closing or self.failure)

    @property
    def is_ready(self) -> bool:
        """Whether a process is there that writes texts."""
        return self.is_open and self._child.is_alive

    @property
    def reason(self) -> str:
        """Why it is not ready; nothing where it is."""
        if self._is_closing:
            return "the model is being unloaded"
        return self.failure or ("" if self.is_ready else "its process ended, and is started again")

    @property
    def process(self) -> int:
        """The number of its process."""
        return self._child.process

    def begin(self, asked: Mapping[str, Any]) -> Stream:
        """Let a request join. Raises: NotReadyError, QueueFullError."""
        stream = Stream(asked, asyncio.get_running_loop())
        stream.writing = int(asked["wish"].get("count", 1))
        with self._changed:
            if not self.is_open:
                raise NotReadyError(self.reason)
            waiting = len(self._streams) - self._running
            if waiting >= self._settings.max_queue:
                raise QueueFullError(f"{waiting} requests wait for the model", retry_after_s=2)
            self._streams[stream.request] = stream
            self._metrics.queue_length(self.name, waiting + 1)
            self._changed.notify_all()
        return stream

    def leave(self, stream: Stream) -> None:
        """Let a request go, whether it is done or not."""
        with self._changed:
            if self._streams.pop(stream.request, None) is not None:
                self._left.append(stream.request)
                self._changed.notify_all()

    async def events(self, asked: Mapping[str, Any]) -> AsyncIterator[Event]:
        """Yield what comes of a request, to its end. Raises: what refuses it."""
        stream = self.begin(asked)
        left, limit = stream.writing, self._settings.time_limit_s
        try:
            while left:
                try:
                    event = await asyncio.wait_for(stream.events.get(), limit)
                except TimeoutError as error:
                    raise TooLateError(f"no token came for {limit:g} s") from error
                if isinstance(event, VermilionError):
                    raise event
                left -= bool(event.get("finish"))
                yield event
        finally:
            self.leave(stream)

    def close(self, *, now: bool = False) -> None:
        """End the process, after its step or `now`; requests that are not done are refused."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if now:
            self._child.stop()
        if self._starting is not None:
            self._starting.stop()
        self._thread.join()
        self._folder.cleanup()

    def _open(self) -> tuple[Child, dict[str, Any]]:
        s = self._settings
        try:
            folder = Path(self._folder.name)
            child = Child(_WORKER, folder / "log", who=self.name, scratch=folder)
        except OSError as error:
            raise DeviceError(f"no process can be started: {error.strerror}") from error
        details = {
            "path": str(self._path), "threads": s.threads, "cache_tokens": s.cache_tokens,
            "most": s.max_sequences, "chunk": s.prompt_chunk, "keeps": s.prefix_cache,
            "cache_dir": None if s.cache_dir is None else str(s.cache_dir),
        }  # fmt: skip
        self._starting = child
        if self._is_closing:
            child.stop()
        try:
            return child, child.ask("open", details, limit_s=OPEN_LIMIT_S, stage="opening")
        except ChildError as error:
            child.stop()
            raise (error.raised or error) from error
        finally:
            self._starting = None

    def _live(self) -> None:
        """Advance to the end; whatever ends it, the model says so."""
        try:
            self._advance()
        except Exception:
            self._metrics.fault(self.name)
            self.failure = "none of its processes is left: a fault of the server"
        self._child.stop()
        self._refuse_all(NotReadyError(self.failure or "the model was unloaded"))

    def _advance(self) -> None:
        """Let the process carry out steps as long as there is something to write."""
        opened, deaths, is_lost = time.monotonic(), 0, False
        while (work := self._work()) is not None:
            try:
                if not (is_lost or self._child.is_alive):
                    is_young = time.monotonic() - opened < YOUNG_S
                    deaths = deaths + 1 if is_young and not self._streams else 0
                    is_lost = self._lost("its process ended")
                if is_lost:
                    if not self._start_again(deaths):
                        break
                    opened, is_lost = time.monotonic(), False
                    continue  # what was to be sent was for the process before
                if self._streams or any(work):
                    self._step(*work)
                    deaths = 0
            except ChildError as error:
                is_lost = self._lost(error.message)
            except Exception:  # the last door: no thread ends while the model says it is ready
                self._metrics.fault(self.name)
                self._refuse_all(FaultError("this is a fault of the server"))
                is_lost = self._lost("a fault of the server")

    def _work(self) -> tuple[list[Stream], list[str]] | None:
        """Wait for something to do; return who joins and who left, None at the end."""
        with self._changed:
            if not (self._is_closing or self._streams or self._left):
                self._changed.wait(LOOK_S)
            if self._is_closing:
                return None
            left, self._left = self._left, []
            streams = list(self._streams.values())
            suspects = [stream for stream in streams if stream.is_suspect]
            # After a process has ended, who was in it joins alone, until it is further than before.
            new = suspects[:1] or streams
            return [stream for stream in new if not stream.is_sent], left

    def _step(self, new: Sequence[Stream], left: Sequence[str]) -> None:
        """Let the process take requests in and out, and write a token of each.

        Raises: ChildError.
        """
        details = {"new": [stream.message() for stream in new], "left": list(left)}
        limit_s = self._settings.time_limit_s
        said = self._child.ask("advance", details, limit_s=limit_s, stage="writing")
        for stream in new:
            stream.is_sent = True
        self._hand_over(said)

    def _start_again(self, deaths: int) -> bool:
        """Start a process, later the more often it ended. Say whether there is one."""
        why = "it ended with nothing to do"
        while deaths < MOST_DEATHS:
            with self._changed:
                if deaths:
                    self._changed.wait_for(lambda: self._is_closing, 0.1 * 2**deaths)
                if self._is_closing:
                    return False
            try:
                self._child, self.about = self._open()
                return True
            except VermilionError as error:
                deaths, why = deaths + 1, error.message
                self._metrics.note(f"{self.name}: its process could not be started: {why}")
        self.failure = f"none of its processes is left: {why}"
        return False

    def _lost(self, words: str) -> bool:
        """Let who was in the process be written again by another one, each alone at first."""
        self._child.stop()
        self._metrics.restarted(self.name)
        self._metrics.note(f"{self.name}: {words}")
        self._metrics.cache(self.name, running=0, used=0, capacity=int(self.about["cache_tokens"]))
        with self._changed:
            self._left = []
            self._running = 0
            streams = list(self._streams.values())
        for stream in [stream for stream in streams if stream.is_suspect][:1]:
            stream.tries += 1
            if stream.tries >= _MOST_TRIES:
                self._tell(stream, [WorkerLostError("the process ended while writing this text")])
                self._forget(stream)
        for stream in streams:
            stream.is_sent, stream.is_suspect = False, True
        return True

    def _hand_over(self, said: Mapping[str, Any]) -> None:
        by_stream: dict[Stream, list[Event | VermilionError]] = {}
        written = 0
        for event in said["events"]:
            stream = self._streams.get(event["request"])
            if stream is None:
                continue
            if "refused" in event:
                self._tell(stream, [error_of(event["refused"])])
                self._forget(stream)
                continue
            if "token" in event:
                if not stream.made:
                    self._metrics.first_token(self.name, time.monotonic() - stream.begin)
                stream.made.setdefault(event["choice"], []).append(event["token"])
                stream.is_suspect, stream.tries = False, 0
                written += 1
                stream.writing -= bool(event["finish"])
                if not stream.writing:
                    self._forget(stream)
            by_stream.setdefault(stream, []).append(event)
        for stream, events in by_stream.items():
            self._tell(stream, events)
        self._count(said, written)

    def _forget(self, stream: Stream) -> None:
        """Write no more for a request; who waits for it has been told, or is."""
        with self._changed:
            self._streams.pop(stream.request, None)

    def _count(self, said: Mapping[str, Any], written: int) -> None:
        self._running = min(int(said["running"]), len(self._streams))
        metrics, name = self._metrics, self.name
        metrics.tokens(name, read=said["read"], cached=said["cached"], written=written)
        if said["step"]:
            metrics.ran(name, said["step"], said["step_s"])
        capacity = int(self.about["cache_tokens"])
        metrics.cache(name, running=said["running"], used=said["used"], capacity=capacity)
        metrics.queue_length(name, int(said["waiting"]))

    def _tell(self, stream: Stream, events: Sequence[Event | VermilionError]) -> None:
        def put() -> None:
            for event in events:
                stream.events.put_nowait(event)

        try:
            stream.loop.call_soon_threadsafe(put)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return

    def _refuse_all(self, error: VermilionError) -> None:
        with self._changed:
            streams = list(self._streams.values())
            self._streams.clear()
        self._metrics.queue_length(self.name, 0)
        for stream in streams:
            self._tell(stream, [error])


# What a worker raises, as a client is told.
_KINDS = {
    "OptionError": WrongRequestError, "UnsupportedError": WrongRequestError,
    "FaultError": FaultError,
}  # fmt: skip


def error_of(refused: Mapping[str, Any]) -> VermilionError:
    """Return the error that a process told of."""
    words, hint = str(refused["message"]), str(refused["hint"])
    for kind in refused["kinds"]:
        if kind in _KINDS:
            return _KINDS[kind](words, hint=hint)
    return VermilionError(words, hint=hint)
