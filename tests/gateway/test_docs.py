"""The page says what the code has: settings, defaults, policies, engines, metrics, routes."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from tidemill.gateway.app import ENDPOINTS, FORWARDED
from tidemill.gateway.config import (
    BreakerConfig,
    CacheConfig,
    CountConfig,
    DiscoveryConfig,
    GatewayConfig,
    HedgeConfig,
    LimitsConfig,
    OwnEngineConfig,
    PinConfig,
    ProbeConfig,
    RedisConfig,
    ReplicaConfig,
    ResumeConfig,
    RetryConfig,
    ScaleConfig,
    StartingConfig,
    TimeoutConfig,
)
from tidemill.gateway.engines.adapter import ADAPTERS
from tidemill.gateway.metrics import DISCOVERY_UP, ENGINE_METRICS, FLEET_METRICS, GATEWAY_METRICS
from tidemill.gateway.routing.policies import POLICIES

PAGE = (Path(__file__).parents[2] / "docs" / "gateway.md").read_text()


_NAMED = (
    *(GatewayConfig, ReplicaConfig, CacheConfig, OwnEngineConfig),
    *(LimitsConfig, DiscoveryConfig, PinConfig, RedisConfig, HedgeConfig),
)
_NUMBERS = (
    *(BreakerConfig, RetryConfig, ResumeConfig, TimeoutConfig, ProbeConfig),
    *(CountConfig, ScaleConfig, StartingConfig),
)


@pytest.mark.parametrize(
    "section", [GatewayConfig, ReplicaConfig, CacheConfig, OwnEngineConfig, LimitsConfig, DiscoveryConfig, PinConfig]
)
def test_every_setting_is_on_the_page(section: type[BaseModel]) -> None:
    assert [name for name in section.model_fields if f"`{name}`" not in PAGE] == []


@pytest.mark.parametrize(
    "section",
    _NUMBERS,
)
def test_every_default_is_on_the_page(section: type[BaseModel]) -> None:
    assert [name for name, field in section.model_fields.items() if f"`{name}` {field.default:g}" not in PAGE] == []


def test_every_name_is_on_the_page() -> None:
    names = [
        *POLICIES,
        *ADAPTERS,
        *FLEET_METRICS,
        *ENGINE_METRICS,
        DISCOVERY_UP,
        *(spec.name for spec in GATEWAY_METRICS),
        *FORWARDED,
    ]
    names += [path for path in ENDPOINTS if path not in ("/", *FORWARDED)]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
