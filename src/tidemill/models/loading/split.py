"""GGUF models that are split over several files, read as one.

    name-00001-of-00003.gguf   split.no 0, split.count 3, split.tensors.count: of all parts together
                               and the metadata of the whole model
    name-00002-of-00003.gguf   split.no 1, ...; tensors
    name-00003-of-00003.gguf   split.no 2, ...; tensors

Source: llama.cpp's gguf-split. Parts of different downloads, or of different models, would make a model that answers
nonsense: whatever the parts say of each other has to agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.gguf import GgufFile
from tidemill.models.loading.split_name import SplitName, split_name
from tidemill.models.loading.stored import StoredTensor

__all__ = ["gguf_paths", "read_gguf"]

_NUMBER, _COUNT, _TENSORS = "split.no", "split.count", "split.tensors.count"
_ARCHITECTURE = "general.architecture"


def read_gguf(path: Path) -> GgufFile:
    """A GGUF model: one file, or all parts of a split one, of which any may be given.

    Raises ModelLoadError naming the part that is missing, or that does not belong to the others.
    """
    given = GgufFile(path)
    count, name = _integer(given, _COUNT, 1), split_name(path.name)
    if count <= 1 and (name is None or name.count == 1):
        return given
    if name is None:
        called = f"{path.stem}-00001-of-{count:05d}.gguf"
        raise ModelLoadError(f"{path}: is one of {count} parts, but is not named so; parts are called {called}")
    parts = [given if other == path else GgufFile(other) for other in _existing(path, name)]
    for index, part in enumerate(parts):
        _check(part, index, name.count, parts[0])
    return parts[0].with_tensors(_joined(parts))


def gguf_paths(path: Path) -> tuple[Path, ...]:
    """The files of a GGUF model on this machine: the file, or the parts of a split one, in order."""
    name = split_name(path.name)
    return (path,) if name is None else tuple(_paths(path, name))


def _paths(path: Path, name: SplitName) -> list[Path]:
    return [path.with_name(name.other(number + 1)) for number in range(name.count)]


def _existing(path: Path, name: SplitName) -> list[Path]:
    paths = [path if number + 1 == name.number else other for number, other in enumerate(_paths(path, name))]
    missing = [other for other in paths if not other.is_file()]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelLoadError(f"{missing[0]}: this part{more} of the {name.count} of {path.name} is missing")
    return paths


def _check(part: GgufFile, index: int, count: int, first: GgufFile) -> None:
    """Compare what a part says of itself with its name, and with the first part."""
    for key, expected in ((_COUNT, count), (_NUMBER, index), (_TENSORS, _integer(first, _TENSORS, -1))):
        if (found := _integer(part, key, -1)) != expected:
            source = "the first part says" if key == _TENSORS else "its name says"
            raise ModelLoadError(f"{part.where}: {key} is {_said(found)}, but {source} {_said(expected)}")
    architecture = first.metadata.get(_ARCHITECTURE)
    if part.metadata.get(_ARCHITECTURE, architecture) != architecture:
        found_text = part.metadata[_ARCHITECTURE]
        raise ModelLoadError(f"{part.where}: {_ARCHITECTURE} is {found_text!r}, but {architecture!r} in the first part")


def _joined(parts: Sequence[GgufFile]) -> dict[str, StoredTensor]:
    """The tensors of all parts."""
    tensors: dict[str, StoredTensor] = {}
    for part in parts:
        for name, tensor in part.tensors.items():
            if name in tensors:
                raise ModelLoadError(f"{tensor} is also in {tensors[name].where}")
            tensors[name] = tensor
    expected = _integer(parts[0], _TENSORS, len(tensors))
    if len(tensors) != expected:
        raise ModelLoadError(f"{parts[0].where}: {_TENSORS} is {expected}, but the parts hold {len(tensors)} tensors")
    return tensors


def _integer(file: GgufFile, key: str, default: int) -> int:
    value = file.metadata.get(key, default)
    if type(value) is not int:
        raise ModelLoadError(f"{file.where}: {key} must be a whole number, not {value!r}")
    return value


def _said(value: int) -> str:
    return "not there" if value < 0 else str(value)
