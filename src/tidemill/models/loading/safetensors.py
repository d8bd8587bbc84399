"""A reader of safetensors files, single or sharded, over memory maps: bf16 stays as its bytes, nothing is copied.

    header length u64 | header JSON {name: {"dtype", "shape", "data_offsets": [begin, end]}} | tensor data

Source: the safetensors format description. The header is checked against the file before anything is made from it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.loading.json_file import parse_json, read_json
from tidemill.models.loading.mapped import MappedFile
from tidemill.models.loading.stored import StoredTensor, check_apart

__all__ = ["INDEX_NAME", "read_checkpoint", "read_shard"]

INDEX_NAME = "model.safetensors.index.json"
_SINGLE_NAME = "model.safetensors"
_MAX_HEADER = 32 * 2**20
"""A quarter of a million tensors in one file."""
_MAX_DIMENSIONS = 8
_FORMATS = {"F32": WeightFormat.F32, "F16": WeightFormat.F16, "BF16": WeightFormat.BF16}


def read_checkpoint(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of a folder: the shards its index names, or its one file. Raises ModelLoadError for a shard that is
    missing, a tensor that is not where the index says, and a tensor that two shards hold."""
    index = folder / INDEX_NAME
    if not index.exists():
        return read_shard(_single(folder))
    places = _places(index)
    stored: dict[str, StoredTensor] = {}
    for shard in sorted(set(places.values())):
        for name, tensor in read_shard(folder / shard).items():
            if name in stored:
                raise ModelLoadError(f"{tensor} is also in {stored[name].where}")
            stored[name] = tensor
    for name, shard in places.items():
        if name not in stored or Path(stored[name].where).name != shard:
            raise ModelLoadError(f"{index}: tensor {name} should be in {shard}, but is not")
    return stored


def read_shard(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file."""
    file = MappedFile(path)
    if file.size < 8:
        raise ModelLoadError(f"{path}: ends inside the header length")
    length = int.from_bytes(file.map[:8], "little")
    if length > file.size - 8:
        raise ModelLoadError(f"{path}: header length {length} is more than the file holds: is it cut off?")
    if length > _MAX_HEADER:
        raise ModelLoadError(f"{path}: header length {length} is more than {_MAX_HEADER}, which no model needs")
    try:
        header = parse_json(file.map[8 : 8 + length], hook=_without_duplicates)
    except ValueError as error:
        raise ModelLoadError(f"{path}: header is not valid: {error}") from error
    if not isinstance(header, dict):
        raise ModelLoadError(f"{path}: header is not a JSON object")
    header.pop("__metadata__", None)
    tensors = {name: _tensor(file, name, entry, 8 + length) for name, entry in header.items()}
    check_apart(tuple(tensors.values()))
    return tensors


def _tensor(file: MappedFile, name: str, entry: Any, data_begin: int) -> StoredTensor:
    what = f"{file.where}: tensor {name}"
    entry = entry if isinstance(entry, dict) else {}
    dtype, shape, offsets = entry.get("dtype"), entry.get("shape"), entry.get("data_offsets")
    if not isinstance(dtype, str):
        raise ModelLoadError(f"{what}: dtype is {dtype!r}")
    if not _whole(shape) or len(shape) > _MAX_DIMENSIONS:
        raise ModelLoadError(f"{what}: shape is {shape!r}")
    if not _whole(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise ModelLoadError(f"{what}: data_offsets is {offsets!r}")
    begin, end = (data_begin + offset for offset in offsets)
    if end > file.size:
        raise ModelLoadError(
            f"{what} {shape} {dtype}: takes bytes {begin} to {end}, but the file ends at {file.size}: is it cut off?"
        )
    stored_as = _FORMATS.get(dtype)
    if stored_as is not None and math.prod(shape) * stored_as.block_bytes != end - begin:
        raise ModelLoadError(f"{what} {shape} {dtype}: has {end - begin} bytes")
    return StoredTensor(
        name=name,
        where=file.where,
        type_name=dtype,
        format=stored_as,
        shape=tuple(shape),
        data=file.view(begin, end),
    )


def _single(folder: Path) -> Path:
    path = folder / _SINGLE_NAME
    if path.exists():
        return path
    found = sorted(folder.glob("*.safetensors"))
    if len(found) == 1:
        return found[0]
    if found:
        raise ModelLoadError(f"{folder}: has {len(found)} safetensors files but no {INDEX_NAME}")
    raise ModelLoadError(f"{folder}: has no {_SINGLE_NAME} and no {INDEX_NAME}; other weight files are not read")


def _places(index: Path) -> dict[str, str]:
    places = read_json(index).get("weight_map")
    if not isinstance(places, dict) or not places or not all(isinstance(shard, str) for shard in places.values()):
        raise ModelLoadError(f"{index}: weight_map is not a map from tensors to files")
    for shard in places.values():
        if Path(shard).name != shard:
            raise ModelLoadError(f"{index}: {shard!r} is not a file of this folder")
    return places


def _whole(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _without_duplicates(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"{key!r} is there twice")
        result[key] = value
    return result
