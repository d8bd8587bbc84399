"""adapter_config.json of PEFT: which modules an adapter changes, and how strongly.

    scale = alpha / rank      or with use_rslora: alpha / sqrt(rank) (Kalajdzievski, arXiv:2312.03732)

``rank_pattern`` and ``alpha_pattern`` give single modules others: their keys are regular expressions for the end of a
module's name. Fields that would change the answer and are not honoured here are refused by name.

Source: PEFT's documentation of LoraConfig.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tidemill.models.fields import Fields
from tidemill.models.loading.json_file import read_json

__all__ = ["PeftConfig"]

_INERT = frozenset(
    {
        "auto_mapping",
        "base_model_class",
        "corda_config",
        "ensure_weight_tying",
        "eva_config",
        "inference_mode",
        "lora_dropout",
        "megatron_core",
        "parent_library",
        "peft_version",
        "qalora_group_size",
        "revision",
        "runtime_config",
        "task_type",
    }
)
"""Fields that say nothing about the answer, or that others of those read here decide."""
_READ = frozenset(
    {
        "alpha_pattern",
        "base_model_name_or_path",
        "bias",
        "exclude_modules",
        "init_lora_weights",
        "layers_pattern",
        "layers_to_transform",
        "lora_alpha",
        "peft_type",
        "r",
        "rank_pattern",
        "target_modules",
        "use_rslora",
    }
)
_CHANGES_BASE = ("pissa", "olora", "corda", "loftq", "lora_ga")
"""Beginnings of init_lora_weights with which training began from another base model than the one served."""
_MAX_RANK = 4096
_MAX_QUANTIFIED = 8
_QUANTIFIER = re.compile(r"(?<!\\)[*+{]")
_REPEATED_GROUP = re.compile(r"\)\s*[*+{?]")


@dataclass(frozen=True, slots=True, kw_only=True)
class PeftConfig:
    """What an adapter's configuration says of its tensors."""

    where: str
    base: str
    """The model it was trained on, as it calls it; empty: it does not say."""
    rank: int
    alpha: float
    rslora: bool
    targets: tuple[str, ...] | None
    """Names, or ends of names, of the modules that it changes; None: a regular expression or a word, and the tensors
    decide."""
    layers: frozenset[int] | None
    """The layers that it changes; None: all."""
    ranks: Mapping[str, float]
    alphas: Mapping[str, float]

    @classmethod
    def read(cls, path: Path) -> Self:
        """From a file. Raises ModelLoadError naming the field that is missing, wrong or not something it can honour."""
        values = read_json(path)
        fields = Fields(values, str(path))
        _check_known(fields)
        return cls(
            where=fields.where,
            base=fields.text("base_model_name_or_path", ""),
            rank=fields.integer("r", 8, high=_MAX_RANK),
            alpha=_alpha(fields, "lora_alpha", values.get("lora_alpha", 8)),
            rslora=fields.flag("use_rslora", False),
            targets=_targets(fields),
            layers=_layers(fields),
            ranks=_pattern(fields, "rank_pattern"),
            alphas=_pattern(fields, "alpha_pattern"),
        )

    def changes(self, module: str) -> bool:
        """Whether the configuration names a module, as far as it names them one by one."""
        if self.targets is not None and not any(module == one or module.endswith(f".{one}") for one in self.targets):
            return False
        if self.layers is None:
            return True
        found = re.match(r".*\.[^.]*\.(\d+)\.", module)
        return found is not None and int(found[1]) in self.layers

    def rank_of(self, module: str) -> int:
        """The rank of a module's part."""
        return int(_matching(self.ranks, module, self.rank))

    def scale_of(self, module: str) -> float:
        """The factor of a module's part."""
        rank = self.rank_of(module)
        alpha = _matching(self.alphas, module, self.alpha)
        return alpha / math.sqrt(rank) if self.rslora else alpha / rank


def _check_known(fields: Fields) -> None:
    if (kind := fields.text("peft_type")) != "LORA":
        raise fields.error("peft_type", f"is {kind!r}; this build knows LORA")
    if (bias := fields.text("bias", "none")) != "none":
        raise fields.error("bias", f"is {bias!r}: adapters with biases are not something this build knows")
    begun = fields.values.get("init_lora_weights")
    if isinstance(begun, str) and begun.lower().startswith(_CHANGES_BASE):
        raise fields.error(
            "init_lora_weights", f"is {begun!r}: the adapter belongs to other base weights; convert it to plain LoRA"
        )
    if fields.values.get("layers_pattern") not in (None, [], "layers", ["layers"]):
        raise fields.error("layers_pattern", "is set to other than layers, which is not something this build knows")
    if fields.values.get("exclude_modules"):
        raise fields.error("exclude_modules", "is set, which is not something this build knows")
    for name, value in fields.values.items():
        if name not in _INERT | _READ and value:
            called = name if name.isprintable() else repr(name)
            raise fields.error(called, f"is {_short(value)}: not something this build knows, so it cannot honour it")


def _targets(fields: Fields) -> tuple[str, ...] | None:
    value = fields.values.get("target_modules")
    if isinstance(value, str):
        return None
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise fields.error("target_modules", f"must be a list of names, or text, not {_short(value)}")
    return tuple(value)


def _layers(fields: Fields) -> frozenset[int] | None:
    value = fields.values.get("layers_to_transform")
    if value is None:
        return None
    layers = value if isinstance(value, list) else [value]
    if not layers or not all(type(layer) is int and layer >= 0 for layer in layers):
        raise fields.error("layers_to_transform", f"must be a layer or a list of layers, not {_short(value)}")
    return frozenset(layers)


def _pattern(fields: Fields, name: str) -> dict[str, float]:
    """A table whose keys are regular expressions. They come with the file, so those that can take long are refused:
    repeated groups, and more than a few quantifiers."""
    values = fields.section(name).values
    integer = name == "rank_pattern"
    quantified = 0
    for key, value in values.items():
        good = type(value) is int and 1 <= value <= _MAX_RANK if integer else True
        if not good:
            raise fields.error(name, f"must have whole numbers from 1 to {_MAX_RANK}, not {_short(value)}")
        if not integer:
            _alpha(fields, name, value)
        found = len(_QUANTIFIER.findall(key))
        quantified += found > 0
        if found > 1 or quantified > _MAX_QUANTIFIED or _REPEATED_GROUP.search(key):
            raise fields.error(name, f"has the key {_short(key)}, an expression that can take long; write names")
        try:
            re.compile(key)
        except (re.error, RecursionError, OverflowError) as error:
            raise fields.error(name, f"has the key {_short(key)}, which is no regular expression") from error
    return {key: float(value) for key, value in values.items()}


def _alpha(fields: Fields, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not -1e9 < value < 1e9:
        raise fields.error(name, f"must be a number, not {_short(value)}")
    return float(value)


def _matching(patterns: Mapping[str, float], module: str, default: float) -> float:
    """The value of the first key that a module's name ends with."""
    return next((value for key, value in patterns.items() if re.match(rf"(.*\.)?({key})$", module)), default)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
