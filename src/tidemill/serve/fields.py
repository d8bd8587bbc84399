"""What becomes of request fields that are not ours: ignored where that changes nothing, refused by name otherwise."""

from __future__ import annotations

import difflib
import logging
from collections.abc import Iterable, Mapping
from typing import Any, Final

from tidemill.core.errors import InvalidRequest, UnsupportedParameter
from tidemill.core.field_path import field_path

__all__ = ["IGNORED", "NOT_BUILT", "FieldFilter", "tell_ignored"]

_log = logging.getLogger(__name__)

IGNORED: Final = frozenset(
    {
        "metadata",
        "prompt_cache_key",
        "prompt_cache_retention",
        "request_id",
        "safety_identifier",
        "service_tier",
        "store",
    }
)
"""Fields that ask for nothing which could change the answer."""

NOT_BUILT: Final[Mapping[str, tuple[Any, ...]]] = {
    "add_special_tokens": (),
    "audio": (),
    "best_of": (),
    "chat_template": (),
    "documents": ([],),
    "dynatemp_range": (0,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "mirostat": (0,),
    "mm_processor_kwargs": ({},),
    "modalities": (["text"],),
    "moderation": (),
    "n_predict": (),
    "prediction": (),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "suffix": ("",),
    "truncate_prompt_tokens": (),
    "typical_p": (1,),
    "use_beam_search": (False,),
    "verbosity": (),
    "web_search_options": (),
}
"""Fields of OpenAI, vLLM and llama.cpp whose feature is not here, and the values that do not ask for it."""


class FieldFilter:
    """Sorts the fields of one route's requests."""

    def __init__(
        self,
        known: Iterable[str],
        *,
        not_built: Mapping[str, tuple[Any, ...]] = NOT_BUILT,
        reasons: Mapping[str, str] | None = None,
    ) -> None:
        """``not_built``: fields to refuse, and the values that do not ask for them. ``reasons``: why, for some."""
        self._known = frozenset(known)
        self._not_built = not_built
        self._reasons = reasons or {}
        self._logged: set[str] = set()

    def sort(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The known fields that have a value; null counts as absent everywhere.

        Raises UnsupportedParameter for a feature that is not built, and InvalidRequest for a name nobody knows, with
        the nearest known one.
        """
        kept: dict[str, Any] = {}
        for name, value in body.items():
            if value is None:
                if name not in self._known and name not in IGNORED and name not in self._not_built:
                    raise self._unknown(name)
            elif name in self._known:
                kept[name] = value
            elif name in IGNORED:
                self._log_once(name)
            elif name in self._not_built:
                self._refuse_feature(name, value)
            else:
                raise self._unknown(name)
        return kept

    def _unknown(self, name: str) -> InvalidRequest:
        shown = field_path([name])
        near = difflib.get_close_matches(name[:64], sorted(self._known | IGNORED | self._not_built.keys()), n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        return InvalidRequest(f"there is no field {shown!r}{hint}", param=shown)

    def _refuse_feature(self, name: str, value: Any) -> None:
        if not any(_same(value, neutral) for neutral in self._not_built[name]):
            why = self._reasons.get(name, "asks for a feature that this server does not have")
            raise UnsupportedParameter(f"{name} {why}", param=name)

    def _log_once(self, name: str) -> None:
        tell_ignored(name, self._logged)


def tell_ignored(name: str, told: set[str]) -> None:
    """Log that a field is ignored, unless it has been told."""
    if name not in told:
        told.add(name)
        _log.warning("the request field %s is ignored: it has no effect here", name)


def _same(value: Any, neutral: Any) -> bool:
    """Equal and of one JSON type: false is not 0, but 1.0 is 1."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)
