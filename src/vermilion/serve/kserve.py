"""KServe's API, version 2, over HTTP: what Triton's and KServe's clients ask for.

Source: the Open Inference Protocol's REST specification, and Triton's documented extensions for
binary tensors, model configuration, the model repository and classification.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from vermilion.serve.bodies import JsonResponse, body_of, json_bytes, object_of, unless_gone
from vermilion.serve.catalog import Catalog, Version
from vermilion.serve.network import Network
from vermilion.serve.refusals import NotServedError, WrongRequestError
from vermilion.serve.settings import Settings
from vermilion.serve.tensors import (
    Array,
    Tensor,
    classes_of,
    read_tensors,
    write_bytes,
    write_list,
)
from vermilion.version import VERSION

HEADER_LENGTH = "inference-header-content-length"
_EXTENSIONS = ["binary_tensor_data", "classification", "model_configuration", "model_repository"]
_MOST_CLASSES = 1 << 16


class KServe:
    """The routes below `/v2`."""

    def __init__(self, catalog: Catalog, settings: Settings) -> None:
        self._catalog, self._settings = catalog, settings

    def routes(self) -> list[Route]:
        """Return all of them."""
        found = [
            Route("/v2", self.server, methods=["GET"]),
            Route("/v2/health/live", self.live, methods=["GET"]),
            Route("/v2/health/ready", self.ready, methods=["GET"]),
            Route("/v2/repository/index", self.index, methods=["POST"]),
            Route("/v2/repository/models/{model}/load", self.load, methods=["POST"]),
            Route("/v2/repository/models/{model}/unload", self.unload, methods=["POST"]),
        ]
        for start in ("/v2/models/{model}", "/v2/models/{model}/versions/{version}"):
            found += [
                Route(start, self.model, methods=["GET"]),
                Route(f"{start}/ready", self.model_ready, methods=["GET"]),
                Route(f"{start}/config", self.config, methods=["GET"]),
                Route(f"{start}/infer", self.infer, methods=["POST"]),
            ]
        return found

    async def server(self, request: Request) -> Response:
        """Say what the server is."""
        del request
        return JsonResponse({"name": "vermilion", "version": VERSION, "extensions": _EXTENSIONS})

    async def live(self, request: Request) -> Response:
        """Say that the server runs."""
        del request
        return JsonResponse({"live": True})

    async def ready(self, request: Request) -> Response:
        """Say whether all models are loaded and have run."""
        del request
        is_ready = self._catalog.is_ready()
        return JsonResponse({"ready": is_ready}, 200 if is_ready else 503)

    async def model_ready(self, request: Request) -> Response:
        """Say whether a model answers."""
        name, version = named(request)
        found = self._catalog.version(name, version)
        is_ready = found.state == "READY"
        return JsonResponse({"name": name, "ready": is_ready}, 200 if is_ready else 503)

    async def model(self, request: Request) -> Response:
        """Describe a model's inputs and outputs."""
        name, number = named(request)
        network = self._network(name, number)
        versions = [one.number for one in self._catalog.versions(name)]
        return JsonResponse(
            {
                "name": name,
                "versions": versions,
                "platform": "vermilion",
                "inputs": [tensor.metadata() for tensor in network.about.inputs],
                "outputs": [tensor.metadata() for tensor in network.about.outputs],
                "parameters": {
                    "runs_on": network.about.runs_on,
                    "placement": network.about.placement,
                    "note": network.about.note,
                },
            }
        )

    async def config(self, request: Request) -> Response:
        """Describe how a model is served, in Triton's words."""
        name, number = named(request)
        network = self._network(name, number)
        about, is_batched = network.about, network.is_batched
        skipped = 1 if is_batched else 0

        def row(tensor: Tensor) -> dict[str, object]:
            metadata = tensor.metadata()
            shape = metadata["shape"]
            assert isinstance(shape, list)
            return {
                "name": tensor.name,
                "data_type": f"TYPE_{_CONFIG_TYPE.get(tensor.datatype, tensor.datatype)}",
                "dims": shape[skipped:],
            }

        delay_us = int(self._settings.max_delay_s * 1e6)
        batching = {"dynamic_batching": {"max_queue_delay_microseconds": delay_us}}
        return JsonResponse(
            {
                "name": name,
                "platform": "vermilion",
                "backend": "vermilion",
                "max_batch_size": self._settings.max_batch if is_batched else 0,
                "input": list(map(row, about.inputs)),
                "output": list(map(row, about.outputs)),
                "instance_group": [{"count": self._settings.instances, "kind": "KIND_CPU"}],
                **(batching if is_batched else {}),
            }
        )

    async def infer(self, request: Request) -> Response:
        """Compute a model's outputs."""
        name, number = named(request)
        network = self._network(name, number)
        request.scope["vermilion"]["model"] = name
        data = await body_of(request, self._settings.max_body_bytes)
        header, binary = parted(data, request.headers.get(HEADER_LENGTH))
        asked = object_of(header)
        inputs = read_tensors(
            asked.get("inputs"), binary, {one.name: one for one in network.about.inputs}
        )
        outputs = wanted_outputs(asked, {one.name: one for one in network.about.outputs})
        identity = asked.get("id", "")
        if not isinstance(identity, str):
            raise WrongRequestError("`id` is a string")
        found = await unless_gone(request, network.infer(inputs))
        version = self._catalog.version(name, number).number
        about = {"model_name": name, "model_version": version}
        if identity:
            about["id"] = identity
        return answer(about, outputs, found)

    async def index(self, request: Request) -> Response:
        """List all models and whether they are loaded."""
        asked = await self._repository_request(request)
        ready_only = asked.get("ready", False)
        if not isinstance(ready_only, bool):
            raise WrongRequestError("`ready` is true or false")
        rows = [_row(one) for one in self._catalog.all()]
        return JsonResponse([row for row in rows if not ready_only or row["state"] == "READY"])

    async def load(self, request: Request) -> Response:
        """Load a model that the server was started with."""
        self._check_alone()
        await self._repository_request(request)
        await asyncio.to_thread(self._catalog.load, request.path_params["model"])
        return Response(status_code=200)

    async def unload(self, request: Request) -> Response:
        """Unload a model; what it computes is finished first."""
        self._check_alone()
        await self._repository_request(request)
        await asyncio.to_thread(self._catalog.unload, request.path_params["model"])
        return Response(status_code=200)

    async def _repository_request(self, request: Request) -> dict[str, Any]:
        data = await body_of(request, self._settings.max_body_bytes)
        asked = object_of(data) if data.strip() else {}
        parameters = asked.get("parameters") or {}
        if not isinstance(parameters, dict) or set(parameters) - {"unload_dependents"}:
            raise WrongRequestError(
                "models are loaded as the server was started with them: without parameters"
            )
        return asked

    def _check_alone(self) -> None:
        """Raise WrongRequestError where the request has reached one replica of several."""
        if self._settings.is_replica:
            raise WrongRequestError(
                "a cluster's replicas have the models that they were started with",
                hint="`vermilion serve … --engine ray` once more replaces them",
            )

    def _network(self, name: str, number: str) -> Network:
        served = self._catalog.served(name, number)
        network = getattr(served, "network", served)
        if not isinstance(network, Network):
            raise NotServedError(
                f"`{name}` is a language model", hint="it is asked at `/v1/chat/completions`"
            )
        return network


# Where a configuration names a type otherwise than a tensor does.
_CONFIG_TYPE = {"BYTES": "STRING"}


def named(request: Request) -> tuple[str, str]:
    """Return the model and the version that a path names; the latter may be none."""
    return request.path_params["model"], request.path_params.get("version", "")


def parted(data: bytes, length: str | None) -> tuple[memoryview, memoryview]:
    """Return the JSON of a body and the bytes behind it. Raises: WrongRequestError."""
    whole = memoryview(data)
    if length is None:
        return whole, whole[len(whole) :]
    if not (
        length.isascii() and length.isdigit() and len(length) < 16 and int(length) <= len(data)
    ):
        raise WrongRequestError(f"`{HEADER_LENGTH}` is {length[:40]!r}, of {len(data)} bytes")
    return whole[: int(length)], whole[int(length) :]


def wanted_outputs(
    asked: Mapping[str, Any], known: Mapping[str, Tensor]
) -> list[tuple[Tensor, bool, int]]:
    """Return the outputs that are asked for: whether as bytes, and how many classes of each.

    Raises: WrongRequestError.
    """
    parameters = asked.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise WrongRequestError("`parameters` is an object")
    all_binary = _flag(parameters, "binary_data_output", default=False)
    rows = asked.get("outputs")
    if rows is None or rows == []:
        return [(tensor, all_binary, 0) for tensor in known.values()]
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise WrongRequestError("`outputs` is a list of objects")
    found = []
    for row in rows:
        name, own = row.get("name"), row.get("parameters") or {}
        if not isinstance(name, str) or name not in known:
            raise WrongRequestError(f"the model has no output {name!r:.100}")
        if not isinstance(own, dict) or any(key.startswith("shared_memory") for key in own):
            raise WrongRequestError(f"`parameters` of output `{name}` are not understood")
        classes = own.get("classification", 0)
        if type(classes) is not int or not 0 <= classes <= _MOST_CLASSES:
            raise WrongRequestError(f"`classification` of output `{name}` is a number")
        if classes and known[name].dtype.kind == "O":
            raise WrongRequestError(f"output `{name}` is text, which has no largest numbers")
        found.append((known[name], _flag(own, "binary_data", default=all_binary), classes))
    return found


def _flag(parameters: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = parameters.get(name, default)
    if not isinstance(value, bool):
        raise WrongRequestError(f"`{name}` is true or false")
    return value


def answer(
    about: Mapping[str, str],
    outputs: list[tuple[Tensor, bool, int]],
    found: Mapping[str, Array],
) -> Response:
    """Return the response to a request: JSON, with bytes behind it where they are asked for."""
    rows, pieces = [], []
    for output, is_binary, classes in outputs:
        tensor, array = output, found[output.name]
        if classes:
            tensor = Tensor(output.name, "tensor(string)", None)
            array = classes_of(array, classes)
        row: dict[str, object] = {
            "name": tensor.name, "datatype": tensor.datatype, "shape": list(array.shape)
        }  # fmt: skip
        if is_binary:
            pieces.append(write_bytes(array, tensor))
            row["parameters"] = {"binary_data_size": len(pieces[-1])}
        else:
            row["data"] = write_list(array, tensor)
        rows.append(row)
    text = json_bytes({**about, "outputs": rows})
    if not pieces:
        return Response(text, media_type="application/json")
    headers = {HEADER_LENGTH: str(len(text))}
    return Response(
        b"".join([text, *pieces]), media_type="application/octet-stream", headers=headers
    )


def _row(version: Version) -> dict[str, str]:
    return {
        "name": version.name,
        "version": version.number,
        "state": version.state,
        "reason": version.reason,
    }
