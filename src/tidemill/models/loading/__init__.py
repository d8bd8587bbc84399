"""From files to a Model: GGUF, safetensors, and names on the Hugging Face hub."""

from tidemill.models.loading.loader import load_model, load_text_source
from tidemill.models.loading.resolve import ModelFiles, bundled_model, located, resolve

__all__ = ["ModelFiles", "bundled_model", "load_model", "load_text_source", "located", "resolve"]
