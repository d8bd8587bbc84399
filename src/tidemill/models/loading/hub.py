"""Models on the Hugging Face hub: fetched into its client's own cache, or used from there without a network.

The client does the transfer: token (HF_TOKEN or its login), endpoint (HF_ENDPOINT), cache folder (HF_HOME), progress
bar on a terminal, and going on where a broken connection ended. Only the files of the model are fetched; nothing that
a repository holds is ever run.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import getproxies

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.hub_files import CARD, HubFiles, choose
from tidemill.models.loading.hub_hash import check_new
from tidemill.models.loading.hub_name import HubName
from tidemill.models.loading.json_file import read_json
from tidemill.models.loading.split_name import split_name

__all__ = ["CachedModel", "Card", "cached", "fetch", "fetch_config", "licence_of", "licence_text", "say"]

_OFFLINE = "this machine is offline"
_INDEX = "model.safetensors.index.json"
_TOKEN_ADVICE = "give a token that may read it: set HF_TOKEN, or log in with hf auth login"
_UNKNOWN_LICENCE = "not stated on its model card"


class Card(Protocol):
    """The header of a model card: a mapping, or the hub client's own object."""

    def get(self, key: str, /) -> Any:
        """A field, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedModel:
    """A model that is whole in the hub client's cache."""

    snapshot: Path
    """The folder of the revision; its name is the commit."""
    files: HubFiles

    @property
    def path(self) -> Path:
        """What to load: the GGUF file, or the folder."""
        return self.snapshot / self.files.first if self.files.first else self.snapshot

    @property
    def revision(self) -> str:
        """The commit."""
        return self.snapshot.name


def say(line: str) -> None:
    """Tell the user something beside the output."""
    print(f"tidemill: {line}", file=sys.stderr, flush=True)


def fetch(name: HubName, *, advice: str, note: Callable[[str], None] = say) -> CachedModel:
    """Bring a model onto this machine, or use what is cached where the hub cannot be had; ``note`` is told which.

    Raises ModelLoadError in one line with the reason and ``advice``.
    """
    here = cached(name) if name.is_commit else None
    if here is not None:
        return here
    problem = _OFFLINE
    if _online():
        try:
            return _download(name, note)
        except ModelLoadError:
            raise
        except Exception as error:  # the hub client's errors have no common root: network, names, disk, access
            problem = _reason(name, error)
    here = cached(name)
    if here is None:
        problem += ", and no earlier download is cached" if problem == _OFFLINE else ""
        raise ModelLoadError(f"{name}: the model cannot be fetched from Hugging Face ({problem}); {advice}")
    note(f"{name}: {problem}; using the cached revision {here.revision}")
    return here


def fetch_config(name: HubName, *, advice: str) -> Path:
    """Fetch a repository's config.json alone. Raises ModelLoadError where there is none, or none can be had."""
    from huggingface_hub import hf_hub_download  # slow to import, and only needed here

    online = _online()
    known = _blobs(name)
    try:
        place = Path(
            hf_hub_download(
                name.repo, "config.json", revision=name.revision, endpoint=_endpoint(), local_files_only=not online
            )
        )
        check_new(place.parent, [place.name], known, where=str(name))
        return place
    except ModelLoadError:
        raise
    except Exception as error:  # as in fetch
        problem = _reason(name, error) if online else f"{_OFFLINE}, and no earlier download is cached"
        raise ModelLoadError(
            f"{name}: config.json cannot be fetched from Hugging Face ({problem}); {advice}"
        ) from error


def cached(name: HubName) -> CachedModel | None:
    """A model in the cache, if it is whole; no network is used. Raises ModelLoadError if several fit the name."""
    snapshot = _snapshot(name)
    if snapshot is None:
        return None
    listing = [path.relative_to(snapshot).as_posix() for path in snapshot.rglob("*") if path.is_file()]
    try:
        files = choose(name, listing)
    except ModelLoadError:
        if name.file is None and sum(file.endswith(".gguf") for file in listing) > 1:
            raise
        return None
    return CachedModel(snapshot=snapshot, files=files) if _whole(snapshot, files) else None


def licence_of(card: Card) -> str:
    """The licence that a model card's header names, with where its text is."""
    named = card.get("license")
    if named == "other" and card.get("license_name"):
        named = card.get("license_name")
    if not named:
        return _UNKNOWN_LICENCE
    text = ", ".join(map(str, named)) if isinstance(named, list) else str(named)
    link = card.get("license_link")
    return " ".join((f"{text} ({link})" if isinstance(link, str) and link else text).split())[:200]


def licence_text(folder: Path) -> str | None:
    """The licence on the model card in a folder; None if there is no card."""
    if not (folder / CARD).is_file():
        return None
    from huggingface_hub import metadata_load

    try:
        return licence_of(metadata_load(folder / CARD) or {})
    except Exception:  # a header that is no YAML: whatever its parser raises
        return _UNKNOWN_LICENCE


def _download(name: HubName, note: Callable[[str], None]) -> CachedModel:
    from huggingface_hub import HfApi

    info = HfApi(endpoint=_endpoint()).model_info(name.repo, revision=name.revision)
    files = choose(name, [sibling.rfilename for sibling in info.siblings or ()])
    here = cached(name)
    if here is not None and here.revision == info.sha and all((here.snapshot / file).is_file() for file in files.names):
        return here
    licence = licence_of(info.card_data or {})
    note(f"fetching {name}; its licence: {licence}; its page: {_page(name)}")
    known = _blobs(name)
    with _bars_on_terminals_only():
        snapshot = _transfer(name, files)
    check_new(snapshot, files.names, known, where=str(name))
    return CachedModel(snapshot=snapshot, files=files)


def _transfer(name: HubName, files: HubFiles) -> Path:
    """The snapshot with all files. Clients before version 1 give up when a connection breaks, and go on if asked again:
    they are, as long as that brings more."""
    from huggingface_hub import snapshot_download

    patterns = [glob.escape(file) for file in files.names]
    arrived = -1
    while True:
        try:
            return Path(
                snapshot_download(name.repo, revision=name.revision, endpoint=_endpoint(), allow_patterns=patterns)
            )
        except OSError as error:  # what the client's requests library raises, or the disk, which has a number
            before, arrived = arrived, _arrived(name)
            if error.errno is not None or getattr(error, "response", None) is not None or arrived <= max(before, 0):
                raise


def _arrived(name: HubName) -> int:
    """Bytes of a repository in the cache, those of unfinished files too."""
    return sum(blob.stat().st_size for blob in (_folder(name) / "blobs").glob("*"))


@contextmanager
def _bars_on_terminals_only() -> Iterator[None]:
    """The client draws some of its progress bars into log files too; whoever has set its variable decides."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    if constants.HF_HUB_DISABLE_PROGRESS_BARS is not None or are_progress_bars_disabled() or sys.stderr.isatty():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


def _folder(name: HubName) -> Path:
    """The cache's folder of a repository."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser() / f"models--{name.repo.replace('/', '--')}"


def _blobs(name: HubName) -> list[Path]:
    """What is cached of a repository, whole files alone."""
    return [blob.resolve() for blob in (_folder(name) / "blobs").glob("*") if blob.suffix != ".incomplete"]


def _snapshot(name: HubName) -> Path | None:
    """The cache's folder of a revision: models--org--name/snapshots/<commit>, the commit from refs/<branch or tag>."""
    folder = _folder(name)
    commit = name.revision
    if not name.is_commit:
        try:
            commit = (folder / "refs" / (name.revision or "main")).read_text().strip()
        except (OSError, ValueError):
            return None
    if not commit or re.fullmatch(r"[\w.-]+", commit) is None or not commit.strip("."):
        return None
    snapshot = folder / "snapshots" / commit
    return snapshot if snapshot.is_dir() else None


def _whole(snapshot: Path, files: HubFiles) -> bool:
    """Whether no weight file is missing, as the files themselves say how many there are."""
    if files.first is not None:
        part = split_name(files.first)
        wanted = [part.other(number + 1) for number in range(part.count)] if part else [files.first]
        return all((snapshot / file).is_file() for file in wanted)
    if not (snapshot / _INDEX).is_file():
        return True
    places = read_json(snapshot / _INDEX).get("weight_map")
    return isinstance(places, dict) and all((snapshot / str(file)).is_file() for file in set(places.values()))


def _endpoint() -> str:
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def _page(name: HubName) -> str:
    return _scrubbed(f"{_endpoint()}/{name.repo}")


def _online() -> bool:
    """Whether the hub may be asked and has an address here: without one, its client would try for half a minute."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        return False
    address = urlsplit(_endpoint())
    host = address.hostname
    if address.scheme in getproxies():  # then it is the proxy that looks up names
        return True
    try:
        return bool(host and socket.getaddrinfo(host, 443))
    except OSError:
        return False


def _reason(name: HubName, error: Exception) -> str:
    """What went wrong, for people, in one line without a secret."""
    from huggingface_hub import errors

    if isinstance(error, errors.GatedRepoError):
        return f"it is gated: accept its terms at {_page(name)}, then {_TOKEN_ADVICE}"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"no such repository, or a private one: check the name, or {_TOKEN_ADVICE}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"it has no revision {name.revision}"
    if isinstance(error, errors.EntryNotFoundError) and not isinstance(error, errors.LocalEntryNotFoundError):
        return "it has no such file"
    if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
        status = error.response.status_code
        if status in {401, 403}:
            return f"access is refused with {status}; {_TOKEN_ADVICE}"
        return f"{urlsplit(_endpoint()).hostname} answers {status}"
    cause = error.__cause__
    if isinstance(error, errors.LocalEntryNotFoundError) and isinstance(cause, Exception):
        return _reason(name, cause)
    return _scrubbed((str(error).strip() or type(error).__name__).splitlines()[0])


def _scrubbed(text: str) -> str:
    """The text without the token and without a password in an address."""
    from huggingface_hub import get_token

    token = get_token()
    text = text.replace(token, "***") if token else text
    return re.sub(r"//[^/\s@]+@", "//", text)
