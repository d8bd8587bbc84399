"""A model that computes the same and costs more: layers that add nothing, behind those of a GGUF file.

    python benchmarks/deepen.py MODEL.gguf DEEP.gguf --layers 210
    tidemill serve DEEP.gguf --speculate draft:MODEL.gguf

The new layers are the file's own again, in turns, with output projections of zeros (attention's and the
feed-forward's), so that what they add to the residual stream is 0. The original is then a draft whose every token is
right: a target as slow as one likes, to measure speculation where no pair of models of one family is at hand.
"""

from __future__ import annotations

import argparse
import re
import struct
from dataclasses import dataclass
from pathlib import Path

_STRING, _ARRAY, _U32 = 8, 9, 4
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the metadata's numbers, by kind."""
_ALIGNMENT = 32
_ZERO = ("attn_output", "ffn_down", "ffn_down_exps", "ffn_down_shexp")
"""Tensors of a layer through which it writes; all bits zero is zero in every format whose blocks have a scale."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """Where a tensor of the file is, and its description without the name and the offset."""

    name: str
    description: bytes
    start: int
    end: int
    zero: bool = False


class Reader:
    """Walks through the header of a GGUF file."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, form: str) -> int:
        """One number."""
        (value,) = struct.unpack_from("<" + form, self.data, self.at)
        self.at += struct.calcsize("<" + form)
        return int(value)

    def text(self) -> str:
        """One string."""
        size = self.take("Q")
        self.at += size
        return self.data[self.at - size : self.at].decode()

    def skip(self, kind: int) -> None:
        """One value of the metadata."""
        if kind == _STRING:
            self.text()
        elif kind == _ARRAY:
            inner, count = self.take("I"), self.take("Q")
            if inner in _SIZES:
                self.at += count * _SIZES[inner]
                return
            for _ in range(count):
                self.skip(inner)
        else:
            self.at += _SIZES[kind]


def deepen(source: bytes, layers: int) -> bytes:
    """The file with so many layers in all. ValueError for one that has as many."""
    reader = Reader(source)
    if reader.take("I") != int.from_bytes(b"GGUF", "little") or reader.take("I") not in (2, 3):
        raise ValueError("not a GGUF file of version 2 or 3")
    num_tensors, num_pairs = reader.take("Q"), reader.take("Q")
    begin = reader.at
    count_at = None
    for _ in range(num_pairs):
        key, kind = reader.text(), reader.take("I")
        if key.endswith(".block_count") and kind == _U32:
            count_at = reader.at - begin
        if key == "general.alignment":
            raise ValueError("files with an alignment of their own are not deepened")
        reader.skip(kind)
    if count_at is None:
        raise ValueError("the file does not say how many layers it has")
    metadata = bytearray(source[begin : reader.at])
    (known,) = struct.unpack_from("<I", metadata, count_at)
    if layers <= known:
        raise ValueError(f"the file has {known} layers already")
    struct.pack_into("<I", metadata, count_at, layers)
    tensors = _tensors(reader, num_tensors)
    for layer in range(known, layers):
        own = f"blk.{layer % known}."
        tensors += [_copy(one, layer) for one in tensors[:num_tensors] if one.name.startswith(own)]
    return _written(source, bytes(metadata), num_pairs, tensors)


def _tensors(reader: Reader, count: int) -> list[Tensor]:
    found = []
    for _ in range(count):
        name, begin = reader.text(), reader.at
        dimensions = reader.take("I")
        reader.at += 8 * dimensions
        reader.take("I")
        description = reader.data[begin : reader.at]
        found.append((name, description, reader.take("Q")))
    base = reader.at + -reader.at % _ALIGNMENT
    ends = sorted([*(offset for *_, offset in found), len(reader.data) - base])
    return [
        Tensor(
            name=name,
            description=description,
            start=base + offset,
            end=base + next(end for end in ends if end > offset),
        )
        for name, description, offset in found
    ]


def _copy(tensor: Tensor, layer: int) -> Tensor:
    name = re.sub(r"^blk\.\d+\.", f"blk.{layer}.", tensor.name)
    zero = name.split(".")[2] in _ZERO
    return Tensor(name=name, description=tensor.description, start=tensor.start, end=tensor.end, zero=zero)


def _written(source: bytes, metadata: bytes, num_pairs: int, tensors: list[Tensor]) -> bytes:
    header = bytearray(b"GGUF" + struct.pack("<IQQ", 3, len(tensors), num_pairs) + metadata)
    offset = 0
    for one in tensors:
        name = one.name.encode()
        header += struct.pack("<Q", len(name)) + name + one.description + struct.pack("<Q", offset)
        offset += one.end - one.start + -(one.end - one.start) % _ALIGNMENT
    header += bytes(-len(header) % _ALIGNMENT)
    for one in tensors:
        size = one.end - one.start
        header += bytes(size) if one.zero else source[one.start : one.end]
        header += bytes(-size % _ALIGNMENT)
    return bytes(header)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--layers", type=int, required=True, help="layers of the new file")
    args = parser.parse_args()
    args.target.write_bytes(deepen(args.source.read_bytes(), args.layers))


if __name__ == "__main__":
    main()
