"""The application: routes of both APIs, metrics, the page, all behind the guard."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from vermilion.errors import VermilionError
from vermilion.pages.document import policy, style
from vermilion.serve.bodies import JsonResponse
from vermilion.serve.catalog import Catalog, Place, Served
from vermilion.serve.encoder import Encoder
from vermilion.serve.guard import Guard, error_response, fault_response
from vermilion.serve.kserve import KServe
from vermilion.serve.language import LanguageModel
from vermilion.serve.metrics import Log, Metrics
from vermilion.serve.network import Network
from vermilion.serve.openai_api import OpenAI
from vermilion.serve.settings import Settings


def opener(settings: Settings, metrics: Metrics) -> Callable[[str, Place], Served]:
    """Return what opens a model of any kind."""

    def open_place(name: str, place: Place) -> Served:
        if place.kind == "language":
            return LanguageModel(name, place.path, settings, metrics)
        if place.kind == "encoder":
            return Encoder(name, place.path, place.target, settings, metrics)
        return Network(name, place.path, place.target, settings, metrics)

    return open_place


def build_app(catalog: Catalog, settings: Settings, metrics: Metrics, log: Log) -> ASGIApp:
    """Return the application for a server's models."""

    async def numbers(request: Request) -> Response:
        del request
        text, kind = metrics.text()
        return Response(text, headers={"Content-Type": kind})

    routes = [
        Route("/", _show_page, methods=["GET"]),
        *KServe(catalog, settings).routes(),
        *OpenAI(catalog, settings).routes(),
        Route("/metrics", numbers, methods=["GET"]),
    ]
    application = Starlette(
        routes=routes,
        exception_handlers={
            VermilionError: _refused,
            HTTPException: _no_such_page,
            Exception: _fault,
        },
    )
    application.router.redirect_slashes = False
    inner: ASGIApp = application
    if settings.cors:
        inner = CORSMiddleware(
            inner, allow_origins=settings.cors, allow_methods=["*"], allow_headers=["*"]
        )
    return Guard(inner, settings, metrics, log)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, VermilionError)
    return error_response(error, request.url.path)


def _fault(request: Request, error: Exception) -> Response:
    del error  # the guard logs it
    return fault_response(request.scope)


def _no_such_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JsonResponse({"error": str(error.detail)}, error.status_code)


_ASSETS = Path(__file__).parent / "assets"


@cache
def _page() -> tuple[str, dict[str, str]]:
    """Return the page, and what it may do: ask this server, and nothing else."""
    look, script = style() + _read("page.css"), _read("page.js")
    before, rest = _read("page.html").split("{style}")
    middle, after = rest.split("{script}")
    rules = policy([look], [script]).replace(
        "form-action 'none'", "form-action 'none'; connect-src 'self'"
    )
    headers = {"Content-Security-Policy": rules, "X-Content-Type-Options": "nosniff"}
    return before + look + middle + script + after, headers


def _read(name: str) -> str:
    return (_ASSETS / name).read_text(encoding="utf-8")


async def _show_page(request: Request) -> Response:
    del request
    text, headers = _page()
    return Response(text, media_type="text/html", headers=headers)
