"""Whoever sends a request, as far as their key says."""

from __future__ import annotations

from dataclasses import dataclass

from tidemill.core.errors import Forbidden
from tidemill.serve.access.allowance import Allowance

__all__ = ["Caller"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The holder of a key, or whoever reaches a server that asks for none."""

    allowance: Allowance
    id: str = ""
    """Of the key; no two have the same."""
    name: str = ""
    """For logs."""
    tenant: str = ""
    """Whose prompts share KV blocks; empty where there are no keys."""
    weight: float = 1.0
    """The tenant's share beside others', where tenants take turns."""
    is_admin: bool = False

    def require_admin(self, what: str) -> None:
        """Raise Forbidden unless this is an administrator; ``what``: what only one may do."""
        if not self.is_admin:
            raise Forbidden(f"{what} takes a key with the role admin (tidemill keys add NAME --admin)")
