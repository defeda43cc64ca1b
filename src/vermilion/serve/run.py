"""A server from its start to its end: it listens, loads its models, and is drained when stopped."""

from __future__ import annotations

import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FrameType

import uvicorn

from vermilion.errors import DeviceError, VermilionError
from vermilion.serve.app import build_app, opener
from vermilion.serve.catalog import Catalog, Place
from vermilion.serve.metrics import Log, Metrics
from vermilion.serve.settings import Settings

Places = Mapping[str, Mapping[str, Place]]


@dataclass(frozen=True)
class Served:
    """What a server did, once it is stopped."""

    url: str
    models: tuple[str, ...]
    seconds: float


class ModelServer:
    """Listens from `start` on; models are loaded meanwhile."""

    def __init__(self, places: Places, settings: Settings, log: Log) -> None:
        """Bind the port. Raises: DeviceError where it is taken; OptionError for wrong keys."""
        self.metrics = Metrics(log)
        self._settings, self._log = settings, log
        self.catalog = Catalog(places, opener(settings, self.metrics), self.metrics.ready)
        if settings.load_all:
            self.catalog.expect_all()
        app = build_app(self.catalog, settings, self.metrics, log)
        self._socket = _bound(settings)
        certificate, key = settings.tls_certificate, settings.tls_key
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                log_config=None,
                access_log=False,
                lifespan="off",
                ws="none",
                server_header=False,
                timeout_graceful_shutdown=max(1, round(settings.drain_s)),
                ssl_certfile=None if certificate is None else str(certificate),
                ssl_keyfile=None if key is None else str(key),
            )
        )
        self.error: VermilionError | None = None
        self.is_loaded = threading.Event()
        self._loading = threading.Thread(target=self._load, name="loading", daemon=True)

    @property
    def url(self) -> str:
        """Where it is asked."""
        host, port = self._socket.getsockname()[:2]
        name = f"[{host}]" if ":" in host else host
        return f"http{'s' if self._settings.tls_key else ''}://{name}:{port}"

    def run(self) -> None:
        """Serve until SIGTERM, Ctrl-C or `stop`. Raises: what a model raised while loading."""
        self._loading.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._log.write("draining")
            self.catalog.close()
        if self.error is not None:
            raise self.error

    def stop(self) -> None:
        """Let it end: what was accepted is answered first. From any thread."""
        self._server.should_exit = True

    def _load(self) -> None:
        if not self._settings.load_all:
            self._log.write("ready", url=self.url, models=[])
            self.is_loaded.set()
            return
        begin = time.monotonic()
        try:
            for name in self.catalog.names():
                self.catalog.load(name)
                self._log.write("loaded", model=name)
        except VermilionError as error:
            self.error = error
            self.stop()
            return
        self.is_loaded.set()
        seconds = round(time.monotonic() - begin, 3)
        self._log.write("ready", url=self.url, models=self.catalog.names(), seconds=seconds)


def serve(places: Places, settings: Settings, log: Log, on_start: Callable[[str], None]) -> Served:
    """Serve until the process is told to end. `on_start` is given the URL.

    Raises: DeviceError for a port that is taken; what a model raises.
    """
    begin = time.monotonic()
    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL)
    server = ModelServer(places, settings, log)
    # The server raises the signals that it was stopped by once more when it has ended.
    before = {one: signal.signal(one, _nothing) for one in (signal.SIGTERM, signal.SIGINT)}
    url = server.url
    on_start(url)
    try:
        server.run()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return Served(url, tuple(server.catalog.names()), time.monotonic() - begin)


def _nothing(number: int, frame: FrameType | None) -> None:
    """Go on: the server has ended by itself."""


def _bound(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        return socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise DeviceError(
            f"port {settings.port} of {settings.host} cannot be listened at: {error.strerror}",
            where="--port",
            hint="another one, or 0 for any that is free",
        ) from error
