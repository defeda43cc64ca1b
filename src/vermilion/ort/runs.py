"""One run of a session: by the compiled program, or by ONNX Runtime where only that can."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vermilion.backends.base import Array
from vermilion.errors import OptionError, VermilionError
from vermilion.ort.asked import read_run_options
from vermilion.ort.engines import Engines
from vermilion.ort.voice import Voice, also
from vermilion.runtime.feeds import NamedSizesError
from vermilion.runtime.session import ModelMetadata, NodeArg

if TYPE_CHECKING:
    import onnxruntime as ort

    from vermilion.ort.profile import Profile
# Booleans, integers, floats: what is bound by its address.
_NUMERIC = "biuf"


class Runs:
    """What a session computes, and what it says of itself. Safe for several threads."""

    def __init__(self, engines: Engines, voice: Voice, profile: Profile | None) -> None:
        self.engines, self._voice, self._profile = engines, voice, profile
        # Of whoever answers first; the other has the same.
        bundle, peer = engines.current()
        one: Any = bundle or peer or engines.peer()
        self.inputs, self.outputs = _described(one.get_inputs()), _described(one.get_outputs())
        self.overridable = engines.overridable
        if bundle is None:
            self.overridable = _described(one.get_overridable_initializers())
        self._replaceable = frozenset(value.name for value in self.overridable)

    @cached_property
    def metadata(self) -> ModelMetadata:
        """The model's own metadata; a bundle's are in its model, which is read for it."""
        bundle, peer = self.engines.current()
        found: Any = (bundle or peer or self.engines.peer()).get_modelmeta()
        names = ModelMetadata.__dataclass_fields__
        return ModelMetadata(**{name: getattr(found, name) for name in names})

    def compute(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        places: Mapping[str, Array] | None = None,
        *,
        fallback: bool = True,
    ) -> list[Any]:
        """Compute the outputs that are named, all where none is, in `places` where these fit.

        Raises: VermilionError that is one of ONNX Runtime's errors too, or what that raises.
        """
        _check_forms(names, feed)
        bundle, peer = self.engines.current()
        is_ended = None
        if options is not None:
            of_run = read_run_options(options)
            self._voice.say(*of_run.notes)
            if of_run.reasons:
                self._voice.say(f"ONNX Runtime computes a run: {'; '.join(of_run.reasons)}")
                bundle = None
            is_ended = partial(getattr, options, "terminate")
        if self._replaceable and not self._replaceable.isdisjoint(feed):
            self._voice.say("ONNX Runtime computes a run that replaces weights of the model")
            bundle = None
        if bundle is None:
            return self._by_peer(peer, names, feed, options, places)
        try:
            if self._profile is not None:
                return self._profile.run(bundle, names, feed, places, is_ended)
            return bundle.run(names, feed, places=places, is_ended=is_ended)
        except VermilionError as error:
            self._check_asked(error, feed, options)
            if not fallback or not self.engines.can_ask_peer:
                raise also(error, "Fail") from error
            self._voice.say(f"ONNX Runtime computes a run that the program cannot: {error.message}")
        return self._by_peer(peer, names, feed, options, places)

    def compute_values(
        self,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any = None,
        *,
        fallback: bool = True,
    ) -> list[Any]:
        """Do the same with ONNX Runtime's `OrtValue`s; text, sequences and maps are its own."""
        wanted = list(names) if names else [value.name for value in self.outputs]
        types = {value.name: value.type for value in self.outputs}
        is_numeric = all(
            types.get(name, "tensor()").startswith("tensor(")
            and "string" not in types.get(name, "")
            for name in wanted
        )
        bundle, peer = self.engines.current()
        if bundle is None or not is_numeric:
            self.check_given(feed)
            peer = peer or self.engines.peer()
            found: list[Any] = peer.run_with_ort_values(wanted, dict(feed), options)
            return found
        from vermilion.ir.ort_values import owned_value

        return list(map(owned_value, self.compute(wanted, feed, options, fallback=fallback)))

    def check_given(self, feed: Mapping[str, Any], error: VermilionError | None = None) -> None:
        """Raise ValueError for an input that is missing, as ONNX Runtime does.

        Raises: TypeError for what holds no inputs by name.
        """
        _check_forms(None, feed)
        missing = [
            value.name
            for value in self.inputs
            if value.name not in feed and not value.type.startswith("optional")
        ]
        if missing:
            found = error or OptionError(f"input `{missing[0]}` is missing")
            raise also(found, "ValueError") from error

    def _check_asked(self, error: VermilionError, feed: Mapping[str, Any], options: Any) -> None:
        """Raise what is the caller's own doing, under ONNX Runtime's class for it."""
        if not isinstance(error, OptionError) or isinstance(error, NamedSizesError):
            return
        self.check_given(feed, error)
        if options is not None and options.terminate:
            raise also(error, "Fail") from error
        are_arrays = all(
            isinstance(value, np.ndarray | list) or hasattr(value, "numpy")
            for value in feed.values()
        )
        raise also(error, "InvalidArgument" if are_arrays else "RuntimeError") from error

    def _by_peer(
        self,
        peer: Any,
        names: Sequence[str] | None,
        feed: Mapping[str, Any],
        options: Any,
        places: Mapping[str, Array] | None,
    ) -> list[Any]:
        wanted = list(names) if names else [value.name for value in self.outputs]
        return _run_peer(peer or self.engines.peer(), wanted, feed, options, places or {})


def _check_forms(names: Any, feed: Any) -> None:
    """Raise TypeError for names or inputs of another form, of which no other error would tell."""
    if not isinstance(feed, Mapping):
        raise TypeError(f"inputs are a dictionary of arrays by name, not {type(feed)}")
    if not names:
        return
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise TypeError(f"outputs are named in a list of texts, or None for all, not {names!r}")


def _described(values: Sequence[Any]) -> tuple[NodeArg, ...]:
    return tuple(NodeArg(value.name, value.type, list(value.shape or ())) for value in values)


def _run_peer(
    peer: ort.InferenceSession,
    names: Sequence[str],
    feed: Mapping[str, Any],
    options: Any,
    places: Mapping[str, Array],
) -> list[Any]:
    """Compute outputs in ONNX Runtime's own session, into `places` where there is one.

    Raises: what ONNX Runtime raises.
    """
    from vermilion.ir.ort_values import needs_values, run_with_values  # with ONNX Runtime

    if needs_values(peer, feed):
        return run_with_values(peer, names, feed, options)
    if not places or not all(map(_is_bound_by_address, (*feed.values(), *places.values()))):
        found: list[Any] = peer.run(list(names), dict(feed), options)
        return found
    binding = peer.io_binding()
    for name, value in feed.items():
        if isinstance(value, np.ndarray):
            binding.bind_cpu_input(name, np.ascontiguousarray(value).reshape(value.shape))
        else:
            binding.bind_ortvalue_input(name, value)
    for name in names:
        place = places.get(name)
        if place is None:
            binding.bind_output(name)
        else:
            binding.bind_output(name, "cpu", 0, place.dtype, place.shape, place.ctypes.data)
    peer.run_with_iobinding(binding, options)
    made = zip(names, binding.get_outputs(), strict=True)
    return [places[name] if name in places else value.numpy() for name, value in made]


def _is_bound_by_address(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in _NUMERIC
    return hasattr(value, "_ortvalue") and value.is_tensor()
