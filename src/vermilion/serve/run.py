"""A server from its start to its end: it listens, loads its models, and is drained when stopped."""

from __future__ import annotations

import logging
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import uvicorn

from vermilion.errors import DeviceError, OptionError, first_line
from vermilion.serve.app import build_app, opener
from vermilion.serve.catalog import Catalog, Place, Version, check_dims
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
        """Bind the port. Raises: DeviceError where it is taken; OptionError for what is wrong."""
        self.metrics = Metrics(log)
        self._settings, self._log = settings, log
        check_dims(places, settings.dims)
        check_tls(settings)
        self.catalog = Catalog(places, opener(settings, self.metrics))
        for name in self.catalog.names():
            self.metrics.ready_when(name, partial(_answers, self.catalog.version(name)))
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
        self.error: Exception | None = None
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
        except Exception as error:  # whatever it is, who started the server is told
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
    url = server.url
    # The server raises the signals that it was stopped by once more when it has ended.
    with until_told():
        on_start(url)
        server.run()
    return Served(url, tuple(server.catalog.names()), time.monotonic() - begin)


@contextmanager
def until_told() -> Iterator[threading.Event]:
    """Take SIGTERM and Ctrl-C as words, not as the end: they set the event."""
    told = threading.Event()

    def tell(number: int, frame: FrameType | None) -> None:
        told.set()

    before = {one: signal.signal(one, tell) for one in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield told
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _answers(version: Version) -> bool:
    return version.state == "READY"


def check_tls(settings: Settings) -> None:
    """Raise OptionError where the certificate and its key are none that can be used."""
    if settings.tls_certificate is None or settings.tls_key is None:
        return
    try:
        # A key that wants a password is not asked for one: nobody may be there to type it.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_certificate, settings.tls_key, password=lambda: ""
        )
    except (OSError, ValueError) as error:
        words = (
            error.strerror if isinstance(error, OSError) and error.strerror else first_line(error)
        )
        raise OptionError(
            f"the certificate and its key cannot be used: {words}",
            where=f"{settings.tls_certificate}, {settings.tls_key}",
            hint="both in PEM form, the key without a password",
        ) from error


def _bound(settings: Settings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        found = socket.create_server((settings.host, settings.port), family=family, backlog=2048)
    except OSError as error:
        raise DeviceError(
            f"port {settings.port} of {settings.host} cannot be listened at: {error.strerror}",
            where="--port",
            hint="another one, or 0 for any that is free",
        ) from error
    # An answer is its head and its body, two writes: without this the second waits until the client
    # has acknowledged the first, 40 ms later. asyncio sets it only on sockets that name TCP.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found
