"""From `package.module:factory` to a PyTorch module that is ready to be exported."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from vermilion.errors import DeviceError, ModelError, OptionError, VermilionError

if TYPE_CHECKING:
    import torch

INSTALL_HINT = "pip install 'vermilion[export]'"

# Random weights that a factory draws are the same each time, so that caches hit.
_SEED = 0


def require_torch() -> None:
    """Raise a DeviceError with the line that installs PyTorch, where it is not installed."""
    try:
        import torch  # noqa: F401 - the export needs it
    except ImportError as error:
        raise DeviceError(f"PyTorch cannot be imported: {error}", hint=INSTALL_HINT) from error


def load_module(spec: str) -> torch.nn.Module:
    """Import what `spec` names and give its module, on the CPU and in evaluation mode.

    `spec` is `package.module:factory` or `path/to/file.py:factory`. The factory is a module, a
    module's class, or a function without arguments that gives one. This runs the user's code.

    Raises: OptionError where there is no such thing; ModelError where the user's code fails.
    """
    import torch

    source, colon, name = spec.rpartition(":")
    if not (colon and source and name):
        raise OptionError(
            f"`{spec}` names no factory",
            hint="write `package.module:factory` or `path/to/file.py:factory`",
        )
    with _importable(source):
        factory = _attribute(_import(source), name, spec)
        module = factory if isinstance(factory, torch.nn.Module) else _call(factory, spec)
    if not isinstance(module, torch.nn.Module):
        raise OptionError(
            f"the factory gave `{type(module).__name__}`, not a torch.nn.Module",
            where=spec,
            hint="name a torch.nn.Module, its class, or a function that returns one",
        )
    return module.eval().cpu()


def _import(source: str) -> ModuleType:
    try:
        if source.endswith(".py"):
            return _import_file(Path(source))
        return importlib.import_module(source)
    except VermilionError:
        raise
    except ModuleNotFoundError as error:
        if error.name and (source == error.name or source.startswith(f"{error.name}.")):
            raise OptionError(
                f"there is no Python module `{source}`",
                hint="run from the folder that holds it, or write `path/to/file.py:factory`",
            ) from error
        raise ModelError(
            f"importing it failed: {error}",
            where=source,
            hint=f"install `{error.name}` into this environment ({sys.prefix})",
        ) from error
    except (Exception, SystemExit) as error:
        raise _users_fault("importing it failed", error, source) from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise OptionError("there is no such file", where=str(path), hint="check the path")
    # A name of its own: the file's stem may be that of an installed package.
    name = f"vermilion_export_{path.stem}"
    found = importlib.util.spec_from_file_location(name, path)
    if found is None or found.loader is None:
        raise OptionError("this is not a Python file", where=str(path))
    module = importlib.util.module_from_spec(found)
    sys.modules[name] = module  # dataclasses and pickles look their module up by name
    found.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, name: str, spec: str) -> object:
    found: object = module
    for part in name.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            near = get_close_matches(part, dir(found), n=1)
            hint = f"did you mean `{near[0]}`?" if near else ""
            raise OptionError(f"there is no `{part}` in it", where=spec, hint=hint) from error
    return found


def _call(factory: object, spec: str) -> object:
    import torch

    if not callable(factory):
        return factory
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            return factory()
    except TypeError as error:
        if error.__traceback__ is not None and error.__traceback__.tb_next is None:
            raise OptionError(
                f"the factory cannot be called without arguments: {error}",
                where=spec,
                hint="write a function without arguments that builds the module, and name that",
            ) from error
        raise _users_fault("the factory failed", error, spec) from error
    except (Exception, SystemExit) as error:
        raise _users_fault("the factory failed", error, spec) from error


def _users_fault(what: str, error: BaseException, where: str) -> ModelError:
    """Point at the line of the user's code that raised, which is where the cure is."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    line = f"{trace.tb_frame.f_code.co_filename}:{trace.tb_lineno}" if trace else where
    return ModelError(
        f"{what}: {type(error).__name__}: {error}",
        where=where,
        hint=f"raised at {line}; `--debug` shows the way there",
    )


@contextmanager
def _importable(source: str) -> Iterator[None]:
    """Let Python find what lies beside the user's file, or in the folder they are in."""
    folder = Path(source).parent if source.endswith(".py") else Path.cwd()
    sys.path.insert(0, str(folder.resolve()))
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(str(folder.resolve()))
