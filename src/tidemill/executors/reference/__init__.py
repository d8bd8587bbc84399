"""The slow oracle: numpy in float64, always installed."""

from tidemill.executors.reference.executor import ReferenceExecutor

__all__ = ["ReferenceExecutor"]
