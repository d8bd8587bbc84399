"""Make of a graph that gives logits one that gives a vector per sequence: the last norm's rows, pooled.

... -> SelectRows -> norm -> Linear (head) -> ...          becomes, for first and last,
... -> Pool       -> norm                                  and for a mean, which is one of normed rows,
... -> norm -> Pool
"""

from __future__ import annotations

from dataclasses import replace

from tidemill.graph.graph import Graph, LayerNorm, Linear, Pool, PoolMode, RmsNorm, Rows, SelectRows

__all__ = ["pooled"]


def pooled(graph: Graph, mode: PoolMode) -> Graph:
    """The plain graph without its head; the weights of the head are no longer among its weights."""
    at, select = next((i, node) for i, node in enumerate(graph.nodes) if isinstance(node, SelectRows))
    norm, *tail = graph.nodes[at + 1 :]
    assert isinstance(norm, RmsNorm | LayerNorm), "the rows that are drawn from are normed first"
    if mode == "mean":
        rows = replace(norm, x=select.x, out=replace(norm.out, rows=Rows.TOKENS))
        pool = Pool(x=rows.out, mode=mode, out=select.out)
        nodes = (*graph.nodes[:at], rows, pool)
    else:
        nodes = (*graph.nodes[:at], Pool(x=select.x, mode=mode, out=select.out), norm)
    head = {name for node in tail if isinstance(node, Linear) for name in (*node.weights, *node.biases)}
    return replace(
        graph,
        nodes=nodes,
        weights=tuple(spec for spec in graph.weights if spec.name not in head),
        aliases={name: target for name, target in graph.aliases.items() if name not in head},
        logits=nodes[-1].out,
    )
