"""A GGUF file in the forms that peers read, by way of transformers.

    python-with-torch-transformers-gguf benchmarks/convert_for_peers.py M.gguf FOLDER-hf
    python-with-ctranslate2-as-well     benchmarks/convert_for_peers.py M.gguf FOLDER-ctranslate2

A folder whose name ends in -hf is a checkpoint in safetensors, of bfloat16, for vLLM. One that ends in -ctranslate2 has
8-bit weights, rounded from the file's values: CTranslate2 has no 4-bit format on CPUs, 8 bits are its fastest.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Read the file's values, write them as a checkpoint, convert that where it is wanted."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    if target.name.endswith("-hf"):
        _write_checkpoint(source, str(target), "bfloat16")
        return
    if not target.name.endswith("-ctranslate2"):
        raise SystemExit(f"{target}: the name must end in -hf or -ctranslate2")
    from ctranslate2.converters import TransformersConverter

    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        _write_checkpoint(source, folder, "float32")
        TransformersConverter(folder).convert(str(target), quantization="int8", force=True)


def _write_checkpoint(source: Path, folder: str, kind: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    # A model that was read from GGUF refuses to be saved; one of the same configuration does not.
    plain = AutoModelForCausalLM.from_config(read.config)
    plain.load_state_dict(read.state_dict())
    plain.to(getattr(torch, kind)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(folder)


if __name__ == "__main__":
    main()
