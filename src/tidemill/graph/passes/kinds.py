"""What people call the work of a node: the rows of a profile."""

from __future__ import annotations

from tidemill.graph.graph import (
    Activate,
    Attention,
    Embed,
    Glu,
    LayerNorm,
    Linear,
    Moe,
    Node,
    RmsNorm,
    Rope,
    Rows,
)

__all__ = ["KV_WRITE", "NORM", "PREPARE", "SAMPLER", "WAITING", "kind_of"]

NORM = "norm + quantise"
KV_WRITE = "rope + kv write"
SAMPLER = "sampler"
PREPARE = "prepare"
"""Row lists, buffers and angles, before the first instruction."""
WAITING = "barrier + idle"
"""Threads without work: at the end of a part of the step, or while one thread does what is too small to share."""

_ROLES = {
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "query": "qkv",
    "key": "qkv",
    "value": "qkv",
    "o_proj": "attention out",
    "gate_proj": "gate + up",
    "up_proj": "gate + up",
    "down_proj": "down",
    "gate": "router",
    "lm_head": "head",
}


def kind_of(node: Node) -> str:
    """The kind of a node's work. Linear layers by their role, from the names of their weights."""
    match node:
        case Linear():
            return _role(node)
        case RmsNorm() | LayerNorm():
            return NORM
        case Attention():
            return "attention"
        case Rope():
            return KV_WRITE
        case Glu() | Activate():
            return "glu"
        case Moe():
            return "experts"
        case Embed():
            return "embedding"
    return "other"


def _role(node: Linear) -> str:
    if node.out.rows is Rows.OUTPUTS:
        return "head"
    module = node.weights[0].removesuffix(".weight").rpartition(".")[2]
    return _ROLES.get(module, "other linear")
