"""What schemathesis is not to send: see fuzz_api."""

from __future__ import annotations

from typing import Any

import schemathesis

SHORT = 20.0


@schemathesis.hook
def before_call(context: Any, case: Any, **kwargs: Any) -> None:
    """Put off deadlines that pass. As each request is sent: not all that are made up go through filters."""
    del context, kwargs
    timeout = case.body.get("timeout") if isinstance(case.body, dict) else None
    if isinstance(timeout, int | float) and not isinstance(timeout, bool) and 0 < timeout < SHORT:
        case.body["timeout"] = SHORT
