"""Checkpoints of a model without its head, and with heads that vectors do not need.

What is saved with a head names the body ``bert.`` or ``model.``; what is saved without one has no such prefix. Older
checkpoints call a layer norm's weight and bias gamma and beta, and hold the numbers of the positions.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from tidemill.models.fields import Fields
from tidemill.models.loading.stored import StoredTensor
from tidemill.models.registry import is_encoder

__all__ = ["base_tensors"]

_BODY = re.compile(r"(?:bert|roberta)\.(?=embeddings\.|encoder\.|pooler\.)")
_UNUSED = re.compile(r"cls\..*|lm_head\..*|pooler\..*|embeddings\.(?:position|token_type)_ids")
_OLD_NORM = {".gamma": ".weight", ".beta": ".bias"}
_HEAD = "lm_head.weight"


def base_tensors(fields: Fields, stored: Mapping[str, StoredTensor]) -> dict[str, StoredTensor]:
    """The tensors of a model that pools under the graph's names, without those of a head. The pooler of BERT's first
    training task (next sentence) is left out: sentence encoders are trained without it."""
    if is_encoder(fields):
        named = {_new_norm(_BODY.sub("", name)): tensor for name, tensor in stored.items()}
        return {name: tensor for name, tensor in named.items() if not _UNUSED.fullmatch(name)}
    prefix = "" if any(name.startswith("model.") for name in stored) else "model."
    return {prefix + name: tensor for name, tensor in stored.items() if name != _HEAD}


def _new_norm(name: str) -> str:
    for old, new in _OLD_NORM.items():
        if name.endswith(f"LayerNorm{old}"):
            return name.removesuffix(old) + new
    return name
