"""A GGUF file as a CTranslate2 folder with 8-bit weights, by way of transformers.

    python-with-torch-transformers-gguf-ctranslate2 benchmarks/to_ctranslate2.py M.gguf FOLDER

CTranslate2 has no 4-bit format on CPUs: 8 bits, rounded from the file's values, are its fastest.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path


def main() -> None:
    """Read the file's values, write them as a checkpoint of float32, convert that."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import torch
    from ctranslate2.converters import TransformersConverter
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    read = AutoModelForCausalLM.from_pretrained(str(source.parent), gguf_file=source.name, dtype=torch.float32)
    if hasattr(read.config, "quantization_config"):
        del read.config.quantization_config
    # A model that was read from GGUF refuses to be saved; one of the same configuration does not.
    plain = AutoModelForCausalLM.from_config(read.config)
    plain.load_state_dict(read.state_dict())
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        plain.save_pretrained(folder)
        AutoTokenizer.from_pretrained(str(source.parent), gguf_file=source.name).save_pretrained(folder)
        del read, plain
        TransformersConverter(folder).convert(str(target), quantization="int8", force=True)


if __name__ == "__main__":
    main()
