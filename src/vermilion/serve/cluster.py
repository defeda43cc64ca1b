"""The same application on a Ray cluster: Ray Serve starts replicas of it and shares requests out.

Models are read by the replicas themselves, under the same paths on every machine.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from vermilion import errors
from vermilion.batch.cluster import joining
from vermilion.errors import DeviceError, OptionError, VermilionError, first_line
from vermilion.serve.app import build_app, opener
from vermilion.serve.catalog import Catalog, Place, check_dims
from vermilion.serve.metrics import Log, Metrics
from vermilion.serve.run import Places, Served, check_tls, until_told
from vermilion.serve.settings import MOST, Settings

APPLICATION = "vermilion"
_DEPLOYMENT = "models"
# Before what a replica could not do, as JSON, among the lines that Ray makes of an exception.
_MARK = "vermilion-error: "
# For each process of a network: a request that it computes, and one that waits.
_REQUESTS_EACH = 2
_LOOK_S = 0.25
# A request's line is ours.
_LOGGING = {"log_level": "WARNING", "enable_access_log": False}


@dataclass(frozen=True)
class Scaling:
    """How many replicas there are, and how long more or fewer must be wanted before it changes."""

    least: int = 1
    most: int = 1
    up_s: float = 5.0
    down_s: float = 60.0  # a replica's models take seconds to load

    def __post_init__(self) -> None:
        if not 1 <= self.least <= self.most <= MOST:
            raise OptionError(
                f"`--replicas {self.least}:{self.most}`",
                hint=f"`MIN:MAX`, both from 1 to {MOST:,}, MIN the smaller one",
            )


class Replica:
    """What runs on the cluster: all models, loaded and tried before a request is let in."""

    def __init__(self, places: Places, settings: Settings) -> None:
        """Load them. Raises: RuntimeError that carries a VermilionError to who deploys."""
        log = Log(sys.stderr)
        metrics = Metrics(log)
        self._catalog = Catalog(places, opener(settings, metrics))
        try:
            for name in self._catalog.names():
                self._catalog.load(name)
                log.write("loaded", model=name)
            self._app = build_app(self._catalog, settings, metrics, log)
        except VermilionError as error:
            self._catalog.close()
            told = [type(error).__name__, error.message, error.where, error.hint]
            raise RuntimeError(_MARK + json.dumps(told)) from error

    def __serve_build_asgi_app__(self) -> ASGIApp:  # the name is Ray's
        return self._app

    def reconfigure(self, config: Mapping[str, str]) -> None:
        """Do nothing: who deployed it is kept with the deployment, for other processes to see."""

    def check_health(self) -> None:
        """Raise RuntimeError where a model has given up: Ray starts another replica then."""
        for version in self._catalog.all():
            if version.state == "UNAVAILABLE":
                raise RuntimeError(f"`{version.name}`: {version.reason}")

    def __del__(self) -> None:
        """End the processes of the models."""
        self._catalog.close()


def check_packages() -> None:
    """Raise DeviceError without Ray Serve."""
    if any(find_spec(name) is None for name in ("ray", "grpc", "fastapi")):
        raise DeviceError(
            "Ray Serve is not installed",
            where="--engine ray",
            hint="pip install 'vermilion[serve-ray]'",
        )


def serve_on_cluster(
    places: Places,
    settings: Settings,
    log: Log,
    on_start: Callable[[str], None],
    *,
    address: str | None = None,
    scaling: Scaling,
) -> Served:
    """Serve on a cluster until the process is told to end, or another one has taken over.

    Raises: DeviceError where Ray Serve is not installed or no cluster answers; what a model
    raises; OptionError for what is wrong.
    """
    check_packages()
    check_dims(places, settings.dims)
    check_tls(settings)
    begin = time.monotonic()
    places, settings = _absolute(places, settings)
    with (
        joining(address) as membership,
        Path(os.devnull).open("w") as nowhere,  # what Ray prints of its own actors; the log has it
        redirect_stdout(nowhere),
    ):
        membership.wait()
        deployed = _Deployed(log, settings)
        # Only now: Ray, when it joins, takes SIGTERM to print a stack.
        with until_told() as told:
            try:
                deployed.start(places, settings, scaling, is_own=membership.is_own_cluster)
                on_start(settings_url(settings))
                deployed.watch(told, list(places))
            finally:
                deployed.end()
    return Served(settings_url(settings), tuple(places), time.monotonic() - begin)


def settings_url(settings: Settings) -> str:
    """Return where each machine of the cluster is asked."""
    name = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"http{'s' if settings.tls_key else ''}://{name}:{settings.port}"


@dataclass(frozen=True)
class _Seen:
    """What the cluster says of the application."""

    owner: str
    status: str
    message: str
    running: int


class _Deployed:
    """The application on the cluster, from this process's point of view."""

    def __init__(self, log: Log, settings: Settings) -> None:
        self._log, self._settings = log, settings
        self._began_serve = self._is_own_cluster = self._is_update = False
        self._name = uuid.uuid4().hex

    def start(self, places: Places, settings: Settings, scaling: Scaling, *, is_own: bool) -> None:
        """Deploy it, in place of what is there. Raises: OptionError, DeviceError."""
        from ray import serve

        logging.getLogger("ray.serve").setLevel(logging.ERROR)
        self._is_own_cluster = is_own
        before = serve.status()
        self._began_serve = not before.proxies and not before.applications
        self._is_update = APPLICATION in before.applications
        _start_serve(settings)
        target = serve.RunTarget(_bound(places, settings, scaling, self._name), APPLICATION, "/")
        try:
            serve.run_many([target], wait_for_applications_running=False)
        except serve.exceptions.RayServeException as error:
            raise DeviceError(f"Ray Serve does not take it: {first_line(error)}") from error

    def watch(self, told: threading.Event, names: list[str]) -> None:
        """Log what becomes of it until `told`, or until another process has taken over.

        Raises: what a model raised in a replica.
        """
        begin, is_ready, running, message = time.monotonic(), False, -1, ""
        while not told.wait(_LOOK_S):
            seen = _seen()
            if seen is None or seen.owner != self._name:
                self._log.write("replaced")
                return
            if seen.status == "DEPLOY_FAILED":
                raise _failure(seen.message)
            if seen.running != running:
                running = seen.running
                self._log.write("replicas", running=running)
            if seen.status == "RUNNING" and not is_ready:
                is_ready = True
                seconds = round(time.monotonic() - begin, 3)
                url = settings_url(self._settings)
                self._log.write("ready", url=url, models=names, seconds=seconds)
            if seen.message and seen.message != message:
                self._log.write("note", text=seen.message)
            message = seen.message

    def end(self) -> None:
        """Take it off the cluster, unless another process has put its own there."""
        from ray import serve

        seen = _seen()
        # Of an update that failed, replicas of the version before may still answer.
        is_kept = seen is not None and seen.status == "DEPLOY_FAILED" and self._is_update
        if seen is not None and seen.owner == self._name and not is_kept:
            self._log.write("draining")
            serve.delete(APPLICATION)
        # A cluster of our own ends with the membership.
        if self._began_serve and not self._is_own_cluster and not serve.status().applications:
            serve.shutdown()


def _seen() -> _Seen | None:
    """Return what the cluster says; None where the application is not there."""
    from ray.serve.context import _get_global_client

    client = _get_global_client(raise_if_no_controller_running=False)
    found = client.get_serve_details()["applications"].get(APPLICATION) if client else None
    if not found:
        return None
    models = found["deployments"].get(_DEPLOYMENT, {})
    owner = models.get("deployment_config", {}).get("user_config") or {}
    states = [one["state"] for one in models.get("replicas", ())]
    message = "\n".join(filter(None, (found["message"], models.get("message", ""))))
    return _Seen(owner.get("owner", ""), found["status"], message, states.count("RUNNING"))


def _start_serve(settings: Settings) -> None:
    """Start Ray Serve, unless it runs. Raises: OptionError where it listens elsewhere."""
    from ray import serve
    from ray.serve.context import _get_global_client

    certificate, key = settings.tls_certificate, settings.tls_key
    serve.start(
        proxy_location="EveryNode",
        http_options={
            "host": settings.host,
            "port": settings.port,
            "ssl_certfile": None if certificate is None else str(certificate),
            "ssl_keyfile": None if key is None else str(key),
        },
        logging_config=_LOGGING,
    )
    there = _get_global_client().http_config
    if (there.host, there.port) != (settings.host, settings.port):
        raise OptionError(
            f"Ray Serve runs there already, and listens at {there.host}:{there.port}",
            where=f"--host {settings.host} --port {settings.port}",
            hint=f"`--host {there.host} --port {there.port}`, or end it: `serve shutdown`",
        )


def _bound(places: Places, settings: Settings, scaling: Scaling, owner: str) -> Any:
    """Return the application as Ray Serve takes it: what it needs, and when there is more of it."""
    import ray
    from ray import serve

    machines = [int(n["Resources"].get("CPU", 0)) for n in ray.nodes() if n["Alive"]]
    cores = _cores_each(machines, settings, scaling.most)
    threads = settings.threads or max(1, cores // settings.instances)
    has_room = sum(count // cores for count in machines) > scaling.most
    ingress = serve.ingress()(Replica)
    deployment = serve.deployment(
        name=_DEPLOYMENT,
        user_config={"owner": owner},
        ray_actor_options={"num_cpus": cores},
        logging_config=_LOGGING,
        max_ongoing_requests=MOST,  # how many may wait is for the queue of each model to say
        autoscaling_config=serve.config.AutoscalingConfig(
            min_replicas=scaling.least,
            max_replicas=scaling.most,
            target_ongoing_requests=_REQUESTS_EACH * settings.instances,
            upscale_delay_s=scaling.up_s,
            downscale_delay_s=scaling.down_s,
            look_back_period_s=scaling.up_s,
            metrics_interval_s=scaling.up_s / 5,
        ),
        graceful_shutdown_timeout_s=settings.drain_s,
        graceful_shutdown_wait_loop_s=min(1.0, settings.drain_s),
        health_check_period_s=2.0,
        max_constructor_retry_count=1,  # a model that is wrong is so the next time too
        # Where there is room for one more, replicas are replaced only when the new one is ready.
        max_surge_percent=1 if has_room else 0,
    )(ingress)
    return deployment.bind(places, replace(settings, threads=threads))


def _cores_each(machines: list[int], settings: Settings, most: int) -> int:
    """Return the cores of a replica: as many as it is told, else the cluster's shared out."""
    if settings.threads:
        return settings.threads * settings.instances
    for cores in range(max(machines, default=1), 1, -1):
        if sum(count // cores for count in machines) >= most:
            return cores
    return 1


def _absolute(places: Places, settings: Settings) -> tuple[Places, Settings]:
    """Return both with paths that mean the same in another process."""
    found: dict[str, Mapping[str, Place]] = {
        name: {number: replace(one, path=one.path.absolute()) for number, one in versions.items()}
        for name, versions in places.items()
    }
    names = ("keys", "tls_certificate", "tls_key", "cache_dir")
    paths = {name: getattr(settings, name) for name in names}
    known = {name: path.absolute() for name, path in paths.items() if path is not None}
    return found, replace(settings, **known)


def _failure(text: str) -> VermilionError:
    """Return what a replica raised: one of our own errors as itself."""
    _, mark, rest = text.rpartition(_MARK)
    if mark:
        kind, message, where, hint = json.JSONDecoder().raw_decode(rest)[0]
        return getattr(errors, kind, DeviceError)(message, where=where, hint=hint)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return DeviceError(
        f"the replicas do not start: {lines[-1] if lines else 'no reason is given'}",
        where="--engine ray",
        hint="Ray keeps what they said under /tmp/ray/session_latest/logs/serve",
    )
