"""The executor a configuration asks for. Modules are imported when they are needed: the native one is a C++ library."""

from __future__ import annotations

from collections.abc import Mapping

from tidemill.core.config import ExecutorConfig
from tidemill.core.errors import ConfigError
from tidemill.executors.protocol import Executor
from tidemill.graph.formats import WeightTensor
from tidemill.graph.graph import Graph

__all__ = ["make_executor"]


def make_executor(
    graph: Graph,
    weights: Mapping[str, WeightTensor],
    config: ExecutorConfig,
    *,
    force_row_variant: int = 0,
    adapters: bool = False,
) -> Executor:
    """Build the executor for a graph, plain or fused, and its weights. KV is allocated by the caller. ``adapters``: it
    takes adapters, for which it may need more room in a step.

    ``force_row_variant`` is the native executor's (tests). Raises ConfigError for a setting that cannot run here, and
    ModelLoadError for a weight that does not fit the graph.
    """
    if config.executor == "reference":
        if force_row_variant:
            raise ConfigError("force_row_variant is a setting of the native executor", param="force_row_variant")
        from tidemill.executors.reference.executor import ReferenceExecutor

        return ReferenceExecutor(
            graph,
            weights,
            numerics=config.numerics,
            kv_format=config.resolved_kv_format,
            attention=config.attention,
            adapters=adapters,
        )
    try:
        from tidemill.executors.native.executor import NativeExecutor
    except ImportError as error:
        raise ConfigError(
            f"the native executor cannot be loaded ({error}); reinstall tidemill, or use executor=reference",
            param="executor",
        ) from error
    return NativeExecutor(graph, weights, config, force_row_variant=force_row_variant, adapters=adapters)
