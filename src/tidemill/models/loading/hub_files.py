"""Which files of a hub repository make up a model: the fewest that it takes, and never code."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.hub_name import HubName
from tidemill.models.loading.split_name import SplitName, split_name

__all__ = ["CARD", "HubFiles", "choose", "gguf_files"]

CARD = "README.md"
"""The model card; its header has the licence."""
_FOLDER_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.json",
    "chat_template.jinja",
    "additional_chat_templates/*.jinja",
    CARD,
)
_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_NOT_MODELS = re.compile(r"(^|[-_.])(mmproj|imatrix)([-_.]|$)", re.IGNORECASE)
_QUANTISATION = re.compile(r"(?:^|[-._/])((?:UD-)?(?:I?Q\d|TQ\d|MXFP\d|NVFP\d|BF16|F16|F32)\w*)$", re.IGNORECASE)
_STARTS_LIKE_ONE = re.compile(r"(I?Q\d|TQ\d|MXFP|NVFP|B?F\d)", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFiles:
    """The files of one model, relative to the repository."""

    names: tuple[str, ...]
    first: str | None
    """The GGUF file to open; None: the files are a folder with config.json and safetensors."""


def choose(name: HubName, listing: Iterable[str]) -> HubFiles:
    """The files of the model that a name means. Raises ModelLoadError listing what there is where the name fits no
    GGUF file, or several."""
    files = sorted(listing)
    weights = _weights(files)
    if name.file is None and "config.json" in files and weights:
        rest = [file for file in files if any(fnmatchcase(file, pattern) for pattern in _FOLDER_FILES)]
        return HubFiles(names=(*rest, *weights), first=None)
    models = gguf_files(files)
    if not models:
        kinds = "no .gguf file" if name.file else "neither a config.json with safetensors nor a .gguf file"
        raise ModelLoadError(f"{name}: this Hugging Face repository has {kinds}")
    fitting = _fitting(name.file, models)
    if len(fitting) != 1:
        problem = "has several GGUF models, name one" if fitting else f"has no GGUF file {name.file}; there are"
        listed = ", ".join(f"{name.repo}:{label}" for label in fitting or models)
        raise ModelLoadError(f"{name}: this repository {problem}: {listed}")
    (parts,) = fitting.values()
    return HubFiles(names=(*parts, *([CARD] if CARD in files else [])), first=parts[0])


def gguf_files(listing: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """The GGUF models among these files: what to call each after the colon -> its file, or the parts it is split into.

    A name is the quantisation where that tells them apart, else the file's own.
    """
    groups: dict[str, list[str]] = {}
    for file in sorted(listing):
        if file.lower().endswith(".gguf") and not _NOT_MODELS.search(_stem(file)):
            groups.setdefault(_stem(file), []).append(file)
    short = [_label(stem) for stem in groups]
    return {
        label if short.count(label) == 1 else stem: tuple(files)
        for label, (stem, files) in zip(short, groups.items(), strict=True)
    }


def _fitting(wanted: str | None, models: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """The models that a word after the colon means: the one that is called so, else all whose file names end in it."""
    if wanted is None:
        return models
    exact = {label: parts for label, parts in models.items() if label.lower() == wanted.lower()}
    return exact or {label: parts for label, parts in models.items() if _fits(wanted, parts[0])}


def _weights(files: list[str]) -> list[str]:
    """The safetensors files that are read: what the index names, or the one file."""
    if _INDEX in files:
        return [_INDEX, *(file for file in files if fnmatchcase(file, "model*-of-*.safetensors"))]
    return [_SINGLE] if _SINGLE in files else [file for file in files if fnmatchcase(file, "model*.safetensors")]


def _stem(file: str) -> str:
    """A path without .gguf and without the part number."""
    part: SplitName | None = split_name(file)
    return part.stem if part else file[: -len(".gguf")]


def _label(stem: str) -> str:
    match = _QUANTISATION.search(stem)
    return match[1].upper() if match else stem


def _fits(wanted: str, file: str) -> bool:
    """Whether a file's name ends in what is wanted, whatever its case, at a place where a word begins.

    An underscore begins one only before a quantisation: K_M is not a word of Q4_K_M.
    """
    stem, end = _stem(file).lower(), wanted.lower().removesuffix(".gguf")
    if stem == end or file.lower() == wanted.lower():
        return True
    breaks = "-./_" if _STARTS_LIKE_ONE.match(wanted) else "-./"
    return stem.endswith(end) and stem[-len(end) - 1] in breaks
