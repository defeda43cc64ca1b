"""Who computes: a compiled bundle, ONNX Runtime until there is one, or ONNX Runtime alone."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vermilion.errors import ModelError, OptionError, UnsupportedError, VermilionError
from vermilion.forks import abandon, renew_after_fork
from vermilion.ort.asked import Asked, does_not_apply
from vermilion.ort.providers import Plan
from vermilion.ort.source import Source, compiled, look_up
from vermilion.ort.voice import Voice, for_opening
from vermilion.runtime.session import NodeArg, Session

if TYPE_CHECKING:
    import onnxruntime as ort

    from vermilion.ort.background import Job
    from vermilion.ort.profile import Profile

When = Literal["background", "now"]


class Engines:
    """What computes a session's runs. Safe for several threads.

    `bundle` is None until the model is compiled, and for one that ONNX Runtime alone runs.
    """

    def __init__(
        self,
        source: Source,
        asked: Asked,
        plan: Plan,
        voice: Voice,
        *,
        options: Any = None,
        keywords: Mapping[str, Any] | None = None,
        when: When = "background",
        bundle_options: Mapping[str, Any] | None = None,
        profile: Profile | None = None,
    ) -> None:
        """Open what is there. Raises: VermilionError that is one of ONNX Runtime's errors too."""
        self.bundle: Session | None = None
        self.overridable: tuple[NodeArg, ...] = ()
        self._source, self._asked, self._plan, self._voice = source, asked, plan, voice
        self._options, self._keywords = options, dict(keywords or {})
        self._bundle_options = dict(bundle_options or {})
        self._profile = profile
        self._peer: ort.InferenceSession | None = None
        self._job: Job | None = None
        self._is_closed = False
        self._lock = threading.RLock()
        self._open(when)
        renew_after_fork(self)

    def peer(self) -> ort.InferenceSession:
        """Return ONNX Runtime's session of the model, opened when it is first needed.

        Raises: what ONNX Runtime raises; OptionError for a bundle, which it cannot open.
        """
        with self._lock:
            if self._is_closed:
                raise OptionError("the session is closed")
            if self._source.bundle is not None:
                raise OptionError(
                    "this needs ONNX Runtime and the model, and the session has a compiled bundle",
                    hint="open the session on the ONNX file",
                )
            if self._peer is None:
                self._peer = self._opened_peer()
            return self._peer

    def current(self) -> tuple[Session | None, ort.InferenceSession | None]:
        """Return what answers now: the bundle, or else ONNX Runtime's session if it is open."""
        peer = self._peer  # first: who goes over to the bundle sets that, and lets go of this
        return self.bundle, peer

    @property
    def can_ask_peer(self) -> bool:
        """Whether ONNX Runtime can compute what the compiled program does not."""
        return self._source.bundle is None

    def wait(self, timeout: float | None) -> bool:
        """Wait until the model is compiled, or is known not to be; say whether it is."""
        job = self._job
        if job is not None:
            job.is_over.wait(timeout)
        return self.bundle is not None

    def close(self) -> None:
        """Let go of everything; a model that is being compiled goes to the cache all the same."""
        with self._lock:
            bundle, self._is_closed, self._peer = self.bundle, True, None
        if bundle is not None:
            bundle.close()

    def after_fork(self) -> None:
        """Renew locks in a forked process; ONNX Runtime's threads are not there either."""
        self._lock = threading.RLock()
        self._voice.renew_lock()
        self._job = None  # what waits for it is a thread of the parent's
        if self._peer is not None:
            abandon(self._peer)
            self._peer = None

    def _open(self, when: When) -> None:
        if self._source.bundle is not None:
            self._open_bundle()
            return
        reasons = (*self._asked.reasons, *(f"`{name}` is asked for" for name in self._elsewhere))
        if self._source.is_ort_format:
            reasons = (*reasons, "it is a model in ONNX Runtime's own format")
        if reasons:
            self._left_to_peer("; ".join(reasons))
            return
        try:
            known = look_up(self._source, self._asked)
        except ModelError as error:
            raise for_opening(error) from error
        except VermilionError as error:
            if self._source.file is not None and not self._source.file.exists():
                raise for_opening(error, is_missing=True) from error
            self._not_compiled(error)
            return
        self.overridable = known.overridable
        self._voice.say(*known.notes)
        if self._asked.writes_optimized:
            self.peer()
        if known.refused:
            self._not_compiled(UnsupportedError(known.refused, where=self._source.label))
        elif known.artifact is not None:
            self._use(known.artifact)
        elif when == "now":
            self._compile_now()
        else:
            self._begin_compiling()

    @property
    def _elsewhere(self) -> Sequence[str]:
        return self._plan.elsewhere

    def _open_bundle(self) -> None:
        for name in self._elsewhere:
            words = "where a compiled bundle runs was decided when it was compiled"
            self._voice.say(does_not_apply(name, words))
        self._voice.say(*(f"{reason}: it does not apply" for reason in self._asked.reasons))
        assert self._source.bundle is not None
        try:
            self.bundle = self._opened(self._source.bundle)
        except VermilionError as error:
            is_missing = isinstance(self._source.bundle, Path) and not self._source.bundle.exists()
            raise for_opening(error, is_missing=is_missing) from error
        self._voice.say(*self.bundle.notes)

    def _begin_compiling(self) -> None:
        self.peer()
        self._voice.say(
            f"{self._source.label} is not compiled yet: ONNX Runtime answers until it is (in the"
            ' background, kept for next time; `compile="now"` waits)'
        )
        from vermilion.ort.background import Job

        self._job = Job(self._source.model, self._asked, self._compiled)

    def _compiled(self, artifact: Path | None, reason: str) -> None:
        """Go over to the bundle; called in a thread, when it is there."""
        if self._is_closed:
            return
        if artifact is None:
            self._voice.say(f"{self._source.label} is not compiled: {reason}; ONNX Runtime answers")
            return
        self._use(artifact)
        if self.bundle is None:
            return
        with self._lock:
            if self._is_closed:
                self.bundle.close()
            # Runs that are in it hold it; what only it can compute opens it again.
            self._peer = None
        self._voice.keep(f"{self._source.label} is compiled, and answers from now on")

    def _compile_now(self) -> None:
        try:
            artifact = compiled(self._source, self._asked)
        except VermilionError as error:
            self._not_compiled(error)
            return
        self._use(artifact)

    def _use(self, artifact: Path) -> None:
        try:
            bundle = self._opened(artifact)
        except VermilionError as error:
            self._not_compiled(error)
            return
        self._voice.say(*bundle.notes)
        self.bundle = bundle

    def _opened(self, artifact: Any) -> Session:
        """Open a bundle, so that it tells of its steps where that was asked for."""
        threads = self._bundle_options.get("threads") or self._asked.threads
        options = {**self._bundle_options, "threads": threads}
        if self._profile is None:
            return Session(artifact, **options)
        return self._profile.opened(artifact, **options)

    def _not_compiled(self, error: VermilionError) -> None:
        if not self._asked.enable_fallback:
            raise for_opening(error) from error
        self._left_to_peer(f"it cannot be compiled: {error.message}")

    def _left_to_peer(self, reason: str) -> None:
        self.peer()
        self._voice.say(f"ONNX Runtime runs {self._source.label}: {reason}")

    def _opened_peer(self) -> ort.InferenceSession:
        import onnxruntime as ort

        model = self._source.file if self._source.file is not None else self._source.data
        keywords = {key: value for key, value in self._keywords.items() if key != "enable_fallback"}
        # Providers of the options are used where no others are named.
        is_chosen = self._options is not None and self._options.has_providers()
        providers = None if is_chosen and not self._plan.names else self._plan.of_onnxruntime
        peer = ort.InferenceSession(
            model, self._options, providers=providers, enable_fallback=0, **keywords
        )
        if self._profile is not None:
            self._profile.add_peer(peer)
        return peer
