"""The replicas that a file lists: in our own form, or in that of Prometheus' file-based service discovery."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from tidemill.core.errors import ConfigError
from tidemill.gateway.config import ReplicaConfig, replica_problem
from tidemill.gateway.yaml_file import read_yaml

__all__ = ["read_listing", "replica_name"]

_OWN_LABELS: Final = ("engine", "weight", "drain")
"""Labels of a target that are fields of a replica."""


def read_listing(path: Path, defaults: Mapping[str, Any]) -> tuple[ReplicaConfig, ...]:
    """The replicas in a YAML or JSON file: a list of replicas, ``replicas:`` with one, or Prometheus' list of
    ``targets`` and ``labels``. ``defaults`` are of fields that it does not give. Raises ConfigError, one line."""
    value = read_yaml(path, param="discovery")
    if isinstance(value, dict) and set(value) == {"replicas"}:
        value = value["replicas"]
    if not isinstance(value, list):
        raise ConfigError(f"{path}: must be a list of replicas", param="discovery")
    found: dict[str, ReplicaConfig] = {}
    for place, item in enumerate(value):
        for fields in _targets(item) if isinstance(item, dict) and "targets" in item else [item]:
            replica = _replica(f"{path}: {place}", fields, defaults)
            if replica.name in found:
                raise ConfigError(f"{path}: {place}: {replica.name} is there twice", param="discovery")
            found[replica.name] = replica
    return tuple(found.values())


def replica_name(text: str) -> str:
    """A name made of an address."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-")[:100]


def _targets(group: Mapping[str, Any]) -> list[Any]:
    targets, labels = group.get("targets"), group.get("labels") or {}
    if not isinstance(targets, list) or not isinstance(labels, dict):
        return [group]
    own = {name: labels[name] for name in _OWN_LABELS if name in labels}
    rest = {str(name): str(value) for name, value in labels.items() if name not in _OWN_LABELS}
    return [
        {"name": replica_name(str(target)), "url": f"http://{target}/v1", "labels": rest, **own} for target in targets
    ]


def _replica(where: str, fields: Any, defaults: Mapping[str, Any]) -> ReplicaConfig:
    if not isinstance(fields, dict):
        raise ConfigError(f"{where}: must be a replica with name and url, not {fields!r:.80}", param="discovery")
    try:
        replica = ReplicaConfig.model_validate({**defaults, **fields})
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise ConfigError(f"{where}: {place}: {first['msg'].lower()}", param="discovery") from None
    if problem := replica_problem(replica):
        raise ConfigError(f"{where}: {problem}", param="discovery")
    return replica
