"""`vermilion serve`: models behind HTTP."""

from __future__ import annotations

import sys
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vermilion.cli.options import CacheDir, Dims, Threads, parse_dims
from vermilion.cli.output import Result, console_on
from vermilion.cli.verb import Terminal, verb
from vermilion.errors import OptionError, UnsupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from vermilion.serve.metrics import Log
    from vermilion.serve.run import Places, Served
    from vermilion.serve.settings import Settings

    Engine = Callable[[Places, Settings, Log, Callable[[str], None]], Served]

_LIMITS = "Limits"
_LANGUAGE = "Language models"
_DOOR = "Who may ask"
_CLUSTER = "More than one machine"


@verb("serve")
def serve(
    terminal: Terminal,
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL|FOLDER|NAME=PATH…",
            help="An ONNX file (`m.onnx@PLACE` says where it runs), a compiled model, a language "
            "model, an encoder's folder, or a folder of models: `NAME/1/model.onnx`.",
            show_default=False,
        ),
    ],
    *,
    host: Annotated[
        str,
        typer.Option("--host", metavar="HOST", help="Where to listen; `0.0.0.0` is every network."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", metavar="PORT", help="0: any that is free.")
    ] = 8000,
    instances: Annotated[
        int, typer.Option("--instances", metavar="N", help="Processes for each network.")
    ] = 1,
    threads: Threads = 0,
    max_batch: Annotated[
        int,
        typer.Option(
            "--max-batch", metavar="N", help="Rows that run together.", rich_help_panel=_LIMITS
        ),
    ] = 32,
    max_delay: Annotated[
        float,
        typer.Option(
            "--max-delay",
            metavar="MS",
            help="Milliseconds that a request waits for others.",
            rich_help_panel=_LIMITS,
        ),
    ] = 0.0,
    max_queue: Annotated[
        int,
        typer.Option(
            "--max-queue",
            metavar="N",
            help="Requests that wait for a model; more get HTTP 429.",
            rich_help_panel=_LIMITS,
        ),
    ] = 256,
    max_body: Annotated[
        float,
        typer.Option(
            "--max-body",
            metavar="MIB",
            help="MiB of a request's body; larger ones get HTTP 413.",
            rich_help_panel=_LIMITS,
        ),
    ] = 64.0,
    time_limit: Annotated[
        float,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            help="Seconds of a request to a network, or between two tokens; then HTTP 504.",
            rich_help_panel=_LIMITS,
        ),
    ] = 120.0,
    drain: Annotated[
        float,
        typer.Option(
            "--drain",
            metavar="SECONDS",
            help="Seconds that requests may take once the server is told to end.",
            rich_help_panel=_LIMITS,
        ),
    ] = 30.0,
    cache_tokens: Annotated[
        int,
        typer.Option(
            "--cache-tokens",
            metavar="N",
            help="Tokens of all texts together; 0: what a quarter of the free memory holds.",
            rich_help_panel=_LANGUAGE,
        ),
    ] = 0,
    max_sequences: Annotated[
        int,
        typer.Option(
            "--max-sequences",
            metavar="N",
            help="Texts written at a time.",
            rich_help_panel=_LANGUAGE,
        ),
    ] = 64,
    prompt_chunk: Annotated[
        int,
        typer.Option(
            "--prompt-chunk",
            metavar="N",
            help="Tokens of a prompt that are read between two steps of the others.",
            rich_help_panel=_LANGUAGE,
        ),
    ] = 256,
    keys: Annotated[
        Path | None,
        typer.Option(
            "--keys",
            metavar="FILE",
            help="API keys, one a line: `Authorization: Bearer KEY`, else HTTP 401. Without it, "
            "everybody who reaches the port may ask.",
            rich_help_panel=_DOOR,
        ),
    ] = None,
    tls_cert: Annotated[
        Path | None,
        typer.Option(
            "--tls-cert",
            metavar="FILE",
            help="Serve HTTPS with this certificate (PEM, with its chain); needs `--tls-key`.",
            rich_help_panel=_DOOR,
        ),
    ] = None,
    tls_key: Annotated[
        Path | None,
        typer.Option(
            "--tls-key",
            metavar="FILE",
            help="The certificate's private key (PEM, without a password).",
            rich_help_panel=_DOOR,
        ),
    ] = None,
    cors: Annotated[
        list[str] | None,
        typer.Option(
            "--cors",
            metavar="ORIGIN",
            help="Let web pages of this origin ask, `https://example.org` say; `*`: of any. "
            "May be repeated. Without it, browsers' requests from other origins get HTTP 403.",
            rich_help_panel=_DOOR,
        ),
    ] = None,
    load: Annotated[
        str,
        typer.Option(
            "--load", metavar="all|none", help="`all`, or `none`: each when it is asked for."
        ),
    ] = "all",
    log: Annotated[
        str,
        typer.Option(
            "--log", metavar="json|off", help="`json`: a line for each request; or `off`."
        ),
    ] = "json",
    engine: Annotated[
        str,
        typer.Option(
            "--engine",
            metavar="local|ray",
            help="This machine, or those of a Ray cluster.",
            rich_help_panel=_CLUSTER,
        ),
    ] = "local",
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            metavar="HOST:PORT",
            help="A Ray cluster; without it, RAY_ADDRESS, or one that is started here.",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    replicas: Annotated[
        str | None,
        typer.Option(
            "--replicas",
            metavar="MIN:MAX",
            help="Replicas on the cluster; as many as the requests that wait ask for. [default: 1]",
            rich_help_panel=_CLUSTER,
        ),
    ] = None,
    dim: Dims = None,
    cache_dir: CacheDir = None,
) -> Result:
    """Put models behind HTTP: KServe's API version 2, and OpenAI's for language models.

    Networks run in processes of their own, requests in batches; texts of language models are
    written together. SIGTERM lets what was accepted be answered first.
    """
    check_packages()
    from vermilion.serve.catalog import find_models
    from vermilion.serve.settings import Settings

    if load not in ("all", "none"):
        raise OptionError(f"`--load {load}`", hint="`all` or `none`")
    settings = Settings(
        host=host, port=port, instances=instances, threads=threads, max_batch=max_batch,
        max_delay_s=max_delay / 1e3, max_queue=max_queue, max_body_bytes=_bytes_of(max_body),
        time_limit_s=time_limit, drain_s=drain, keys=keys, tls_certificate=tls_cert,
        tls_key=tls_key, cors=tuple(cors or ()), cache_dir=cache_dir, dims=parse_dims(dim),
        load_all=load == "all", cache_tokens=cache_tokens, max_sequences=max_sequences,
        prompt_chunk=prompt_chunk, is_replica=engine == "ray",
    )  # fmt: skip
    run_server = _engine(engine, address, replicas, settings)
    found = find_models(models)
    if host not in ("127.0.0.1", "localhost", "::1") and keys is None:
        terminal.warn(f"everybody who reaches {host} may ask: `--keys FILE` lets in who has a key")

    def started(url: str) -> None:
        names = ", ".join(found)
        console_on(sys.stderr).print(f"serving {names} at {url}", soft_wrap=True, markup=False)

    served = run_server(found, settings, _log(log), started)
    data = {"url": served.url, "models": list(served.models), "seconds": served.seconds}
    return Result(data, lambda: f"served {', '.join(served.models)} for {served.seconds:.0f} s")


def _engine(word: str, address: str | None, replicas: str | None, settings: Settings) -> Engine:
    """Return what serves. Raises: OptionError, DeviceError."""
    if word == "local":
        for name, value in (("--address", address), ("--replicas", replicas)):
            if value is not None:
                raise OptionError(
                    f"only Ray has {'an address' if name == '--address' else 'replicas'}",
                    where=name,
                    hint="`--engine ray`",
                )
        from vermilion.serve.run import serve as run_server

        return run_server
    if word != "ray":
        raise OptionError(f"no engine is called `{word}`", where="--engine", hint="local or ray")
    from vermilion.serve import cluster

    if not settings.load_all:
        raise OptionError("replicas on a cluster load all of their models", where="--load none")
    if settings.port == 0:
        raise OptionError("all machines of a cluster listen at one port", where="--port 0")
    least, colon, most = (replicas or "1").partition(":")
    try:
        scaling = cluster.Scaling(int(least), int(most if colon else least))
    except ValueError as error:
        raise OptionError(f"`--replicas {replicas}`", hint="`MIN:MAX`, or a number") from error
    cluster.check_packages()
    return partial(cluster.serve_on_cluster, address=address, scaling=scaling)


def _bytes_of(max_body: float) -> int:
    from vermilion.serve.settings import MIB, MOST

    if not 0 < max_body <= MOST:  # NaN is neither
        raise OptionError(f"`--max-body` is {max_body:g}: it is more than 0, and {MOST:,} or less")
    return max(1, int(max_body * MIB))


def _log(word: str) -> Log:
    from vermilion.serve.metrics import Log

    if word not in ("json", "off"):
        raise OptionError(f"`--log {word}`", hint="`json` or `off`")
    return Log(sys.stderr if word == "json" else None)


def check_packages() -> None:
    """Raise UnsupportedError without the packages of the extra `serve`."""
    missing = [
        name for name in ("starlette", "uvicorn", "prometheus_client") if not find_spec(name)
    ]
    if missing:
        raise UnsupportedError(
            f"serving needs the package `{missing[0]}`", hint="pip install 'vermilion[serve]'"
        )
