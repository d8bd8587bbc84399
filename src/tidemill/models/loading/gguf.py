"""A reader of GGUF files, versions 2 and 3: bounds-checked, memory-mapped, trusting nothing in the file.

    "GGUF" | version u32 | tensors u64 | metadata pairs u64
    pairs:    key string | type u32 | value
    tensors:  name string | dimensions u32 | sizes u64 each (fastest first) | type u32 | offset u64
    padding to the alignment, then tensor data; offsets count from there
    string:   length u64 | bytes of UTF-8;    array: type u32 | count u64 | values

Source: ggml's GGUF specification (docs/gguf.md there). Every count and length is compared with the bytes that are left
before anything is made from it, so a damaged or hostile file costs no more than its own size.
"""

from __future__ import annotations

import copy
import math
import struct
from array import array
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, Self, overload

import numpy as np

from tidemill.core.errors import ModelLoadError
from tidemill.graph.formats import WeightFormat
from tidemill.models.loading.mapped import MappedFile
from tidemill.models.loading.stored import StoredTensor, check_apart

__all__ = ["GgufFile", "StringArray"]

_MAX_NESTING = 4
_MAX_TENSORS, _MAX_PAIRS, _MAX_ARRAYS = 1 << 18, 1 << 16, 1 << 12
"""Far above what files have. What is made for each is many times its bytes in the file."""
_MAX_DIMENSIONS = 4
_MAX_ALIGNMENT = 1 << 20

_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    _BOOL: struct.Struct("<B"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_DTYPES = {kind: "<u1" if kind == _BOOL else np.dtype(packer.format) for kind, packer in _SCALARS.items()}
_LENGTH = struct.Struct("<Q")
_Info = tuple[tuple[int, ...], int, int]
"""Shape, type number and offset of a tensor."""

_FORMATS = {
    0: WeightFormat.F32,
    1: WeightFormat.F16,
    2: WeightFormat.Q4_0,
    3: WeightFormat.Q4_1,
    6: WeightFormat.Q5_0,
    7: WeightFormat.Q5_1,
    8: WeightFormat.Q8_0,
    10: WeightFormat.Q2_K,
    11: WeightFormat.Q3_K,
    12: WeightFormat.Q4_K,
    13: WeightFormat.Q5_K,
    14: WeightFormat.Q6_K,
    20: WeightFormat.IQ4_NL,
    30: WeightFormat.BF16,
    39: WeightFormat.MXFP4,
}
# Types that exist but are not read here, so that a refusal can call them by name.
_OTHER_TYPES = {
    9: "q8_1", 15: "q8_k", 16: "iq2_xxs", 17: "iq2_xs", 18: "iq3_xxs", 19: "iq1_s", 21: "iq3_s", 22: "iq2_s",
    23: "iq4_xs", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64", 29: "iq1_m", 34: "tq1_0", 35: "tq2_0",
    40: "nvfp4",
}  # fmt: skip


class StringArray(Sequence[str]):
    """The strings of a metadata array, decoded when read. Pickles as a plain tuple."""

    def __init__(self, file: MappedFile, key: str, ends: array[int]) -> None:
        self._file = file
        self._key = key
        self._ends = ends
        """ends[0] is where the first string's length field starts, ends[i + 1] where string i ends."""

    def __len__(self) -> int:
        return len(self._ends) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[str, ...]: ...
    def __getitem__(self, index: int | slice) -> str | tuple[str, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        if index < 0:
            index += len(self)
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._decode(self._ends[index] + 8, self._ends[index + 1])

    def __iter__(self) -> Iterator[str]:
        ends, content = self._ends, self._file.map
        begin = ends[0]
        try:
            for end in ends[1:]:
                yield str(content[begin + 8 : end], "utf-8")
                begin = end
        except UnicodeDecodeError:
            self._decode(begin + 8, end)

    def __reduce__(self) -> tuple[type[tuple[Any, ...]], tuple[list[str]]]:
        return tuple, (list(self),)

    def _decode(self, begin: int, end: int) -> str:
        try:
            return str(self._file.map[begin:end], "utf-8")
        except UnicodeDecodeError as error:
            raise ModelLoadError(f"{self._file.where}: {self._key} holds text that is not UTF-8") from error


class GgufFile:
    """The metadata and tensors of one file. Raises ModelLoadError naming the file and the field at fault."""

    def __init__(self, path: Path) -> None:
        self._file = MappedFile(path)
        self.where = self._file.where
        self.metadata: Mapping[str, Any]
        """Numbers, booleans and text as Python values; arrays of numbers as numpy arrays, of text as StringArray."""
        self.tensors: Mapping[str, StoredTensor]
        """By name, shapes rows first."""
        cursor = _Cursor(self._file)
        tensor_count, pair_count = _header(cursor)
        self.metadata = _metadata(cursor, pair_count)
        self.tensors = _tensors(cursor, tensor_count, _alignment(cursor, self.metadata))

    def with_tensors(self, tensors: Mapping[str, StoredTensor]) -> Self:
        """The same metadata with other tensors: those of all parts of a split model."""
        other = copy.copy(self)
        other.tensors = tensors
        return other


class _Cursor:
    """A position in the file; each read is checked against what is left."""

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.at = 0
        self.nested = 0
        """Arrays so far that are elements of arrays."""

    @property
    def left(self) -> int:
        return self.file.size - self.at

    def fail(self, field: str, problem: str) -> NoReturn:
        raise ModelLoadError(f"{self.file.where}: {field} {problem}")

    def scalar(self, packer: struct.Struct, field: str) -> Any:
        if packer.size > self.left:
            self.fail(field, f"is cut off: the file ends at byte {self.file.size}")
        (value,) = packer.unpack_from(self.file.map, self.at)
        self.at += packer.size
        return value

    def u32(self, field: str) -> int:
        value = self.scalar(_SCALARS[4], field)
        assert isinstance(value, int)
        return value

    def count(self, field: str, least_bytes: int) -> int:
        """A u64 count of things that take at least this many bytes each."""
        value = self.scalar(_LENGTH, field)
        assert isinstance(value, int)
        if value * least_bytes > self.left:
            self.fail(field, f"is {value}, more than the {self.left} bytes left can hold")
        return value

    def string(self, field: str) -> str:
        length = self.count(f"length of {field}", 1)
        raw = self.file.map[self.at : self.at + length]
        self.at += length
        try:
            return str(raw, "utf-8")
        except UnicodeDecodeError:
            self.fail(field, "is text that is not UTF-8")


def _header(cursor: _Cursor) -> tuple[int, int]:
    if cursor.left < 4 or cursor.file.map[:4] != b"GGUF":
        cursor.fail("magic", "is not GGUF: this is not a GGUF file")
    cursor.at = 4
    version = cursor.u32("version")
    if version not in {2, 3}:
        big = version & 0xFFFF == 0 and version >> 24 in {1, 2, 3}
        cursor.fail("version", "is big-endian; convert the file" if big else f"is {version}; this build reads 2 and 3")
    tensors = cursor.count("tensor count", 24)
    pairs = cursor.count("metadata count", 13)
    for field, count, most in (("tensor count", tensors, _MAX_TENSORS), ("metadata count", pairs, _MAX_PAIRS)):
        if count > most:
            cursor.fail(field, f"is {count}, more than the {most} that any model needs")
    return tensors, pairs


def _metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.string(f"metadata key {index}")
        if key in metadata:
            cursor.fail(f"metadata key {key!r}", "is there twice")
        metadata[key] = _value(cursor, cursor.u32(f"type of {key}"), key, 0)
    return metadata


def _value(cursor: _Cursor, kind: int, key: str, depth: int) -> Any:
    if kind == _STRING:
        return cursor.string(key)
    if kind == _ARRAY:
        return _array(cursor, key, depth + 1)
    if kind not in _SCALARS:
        cursor.fail(f"type of {key}", f"is {kind}, which GGUF does not know")
    value = cursor.scalar(_SCALARS[kind], key)
    return bool(value) if kind == _BOOL else value


def _array(cursor: _Cursor, key: str, depth: int) -> Any:
    if depth > _MAX_NESTING:
        cursor.fail(key, f"nests arrays more than {_MAX_NESTING} deep")
    kind = cursor.u32(f"element type of {key}")
    if kind == _STRING:
        return _strings(cursor, key)
    if kind == _ARRAY:
        count = cursor.count(f"length of {key}", 12)
        cursor.nested += count
        if cursor.nested > _MAX_ARRAYS:
            cursor.fail(key, f"nests arrays: the file has more than {_MAX_ARRAYS} that are parts of others")
        return [_array(cursor, key, depth + 1) for _ in range(count)]
    if kind not in _SCALARS:
        cursor.fail(f"element type of {key}", f"is {kind}, which GGUF does not know")
    dtype = np.dtype(_DTYPES[kind])
    begin = cursor.at + 8
    cursor.at = begin + cursor.count(f"length of {key}", dtype.itemsize) * dtype.itemsize
    values = cursor.file.view(begin, cursor.at).view(dtype)
    return values.astype(np.bool_) if kind == _BOOL else values


def _strings(cursor: _Cursor, key: str) -> StringArray:
    """Finds where each string ends: the one loop whose length a vocabulary sets, so it does nothing else."""
    count = cursor.count(f"length of {key}", 8)
    content, size, unpack = cursor.file.map, cursor.file.size, _LENGTH.unpack_from
    at = cursor.at
    ends = array("Q", [at])
    append = ends.append
    try:
        for _ in range(count):
            at += 8 + unpack(content, at)[0]
            append(at)
    except (struct.error, OverflowError):
        cursor.fail(key, f"is cut off in string {len(ends) - 1} of {count}")
    if at > size:
        cursor.fail(key, f"is cut off in string {len(ends) - 2} of {count}")
    cursor.at = at
    return StringArray(cursor.file, key, ends)


def _alignment(cursor: _Cursor, metadata: Mapping[str, Any]) -> int:
    value = metadata.get("general.alignment", 32)
    if (
        isinstance(value, bool)
        or not isinstance(value, int)
        or value.bit_count() != 1
        or not 1 <= value <= _MAX_ALIGNMENT
    ):
        cursor.fail("general.alignment", f"must be a power of two up to {_MAX_ALIGNMENT}, not {value!r}")
    return value


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, StoredTensor]:
    infos: dict[str, _Info] = {}
    for index in range(count):
        name = cursor.string(f"name of tensor {index}")
        if name in infos:
            cursor.fail(f"tensor {name}", "is there twice")
        infos[name] = (_shape(cursor, name), cursor.u32(f"type of tensor {name}"), _offset(cursor, name, alignment))
    data_begin = cursor.at + -cursor.at % alignment
    tensors = {name: _tensor(cursor, name, info, data_begin) for name, info in infos.items()}
    check_apart(tuple(tensors.values()))
    return tensors


def _shape(cursor: _Cursor, name: str) -> tuple[int, ...]:
    dimensions = cursor.u32(f"dimensions of tensor {name}")
    if not 1 <= dimensions <= _MAX_DIMENSIONS:
        cursor.fail(f"dimensions of tensor {name}", f"is {dimensions}, not 1 to {_MAX_DIMENSIONS}")
    sizes = tuple(cursor.scalar(_LENGTH, f"shape of tensor {name}") for _ in range(dimensions))
    if 0 in sizes:
        cursor.fail(f"tensor {name}", f"has a size of 0 in its shape {list(sizes)}")
    return sizes[::-1]


def _offset(cursor: _Cursor, name: str, alignment: int) -> int:
    offset = cursor.scalar(_LENGTH, f"offset of tensor {name}")
    assert isinstance(offset, int)
    if offset % alignment:
        cursor.fail(f"offset of tensor {name}", f"is {offset}, not a multiple of the alignment {alignment}")
    return offset


def _tensor(cursor: _Cursor, name: str, info: _Info, data_begin: int) -> StoredTensor:
    shape, kind, offset = info
    file, stored_as = cursor.file, _FORMATS.get(kind)
    begin = data_begin + offset
    size = 0
    if stored_as is not None:
        if shape[-1] % stored_as.block_values:
            cursor.fail(
                f"tensor {name} {list(shape)} {stored_as}", f"has rows that are not blocks of {stored_as.block_values}"
            )
        size = math.prod(shape[:-1]) * stored_as.row_bytes(shape[-1])
    if begin + size > file.size:
        cursor.fail(
            f"tensor {name} {list(shape)}",
            f"takes bytes {begin} to {begin + size}, but the file ends at {file.size}: is it cut off?",
        )
    type_name = stored_as.value if stored_as is not None else _OTHER_TYPES.get(kind, f"type {kind}")
    data = file.view(begin, begin + size)
    return StoredTensor(name=name, where=file.where, type_name=type_name, format=stored_as, shape=shape, data=data)
