"""What the Hugging Face client's cache holds, and removing models from it.

models--org--name/
  refs/main                     the commit that a branch was at
  snapshots/<commit>/file  -->  blobs/<id>     links; equal files of several commits share a blob
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tidemill.core.errors import ModelLoadError
from tidemill.models.loading.hub import CachedModel, cached
from tidemill.models.loading.hub_files import CARD, choose, gguf_files
from tidemill.models.loading.hub_name import HubName

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, CachedRepoInfo, CachedRevisionInfo, HFCacheInfo

__all__ = ["CacheRow", "Removal", "cached_models", "plan_removal"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRow:
    """One model in the cache."""

    name: HubName
    """With its revision, where that is not the main branch."""
    path: Path
    size: int
    """Bytes of its files."""
    revision: str
    """The commit."""
    whole: bool
    """False: files are missing, because a download was not finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What would be removed; nothing is until ``run``."""

    name: HubName
    bytes: int
    """What that frees: blobs that other models share stay."""
    revisions: tuple[str, ...]
    """Commits that go as a whole."""
    files: tuple[Path, ...]
    """Single files, where other models of the repository stay."""

    def run(self) -> None:
        """Remove it. Raises ModelLoadError naming the file that cannot be."""
        try:
            for path in self.files:
                path.unlink(missing_ok=True)
        except OSError as error:
            raise ModelLoadError(f"{error.filename}: cannot be removed: {error.strerror}") from error
        if self.revisions:
            info = _scan()
            assert info is not None
            info.delete_revisions(*self.revisions).execute()


def cached_models() -> list[CacheRow]:
    """The models in the cache that this build can read, by name; no network is used."""
    info = _scan()
    rows = [row for repo in info.repos for row in _rows(repo) if repo.repo_type == "model"] if info else []
    return sorted(rows, key=lambda row: (row.name.repo, str(row.name), row.revision))


def plan_removal(name: HubName) -> Removal:
    """What ``name`` has in the cache: without a file all models of the repository, without a revision all revisions.

    Raises ModelLoadError if that is nothing.
    """
    info = _scan()
    repos = [repo for repo in info.repos if repo.repo_type == "model" and repo.repo_id == name.repo] if info else []
    revisions = [one for repo in repos for one in repo.revisions if _is(one, name.revision)]
    if not info or not revisions:
        raise ModelLoadError(f"{name}: is not in the cache; tidemill models list shows what is")
    if name.file is None:
        return _whole_revisions(name, info, revisions)
    chosen = {one.commit_hash: _files_of(name, one) for one in revisions}
    if not any(chosen.values()):
        raise ModelLoadError(f"{name}: is not in the cache; there are: {', '.join(_names_of(name.repo, revisions))}")
    if all(not _models_in(set(_by_name(one)) - set(chosen[one.commit_hash])) for one in revisions):
        return _whole_revisions(name, info, revisions)
    everything = [file for repo in repos for one in repo.revisions for file in one.files]
    return _single_files(name, everything, [file for files in chosen.values() for file in files.values()])


def _scan() -> HFCacheInfo | None:
    """The client's account of its cache; None if there is no cache yet."""
    from huggingface_hub import CacheNotFound, constants, scan_cache_dir

    try:
        return scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):
        return None


def _rows(repo: CachedRepoInfo) -> Iterator[CacheRow]:
    for revision in repo.revisions:
        refs = sorted(revision.refs)
        label = None if "main" in refs else (refs or [revision.commit_hash])[0]
        files = _by_name(revision)
        for file in _models_in(files):
            name = HubName(repo=repo.repo_id, file=file, revision=label)
            chosen = choose(name, files)
            here = _cached(name)
            yield CacheRow(
                name=name,
                path=revision.snapshot_path / chosen.first if chosen.first else revision.snapshot_path,
                size=sum(files[one].size_on_disk for one in chosen.names),
                revision=revision.commit_hash,
                whole=here is not None,
            )


def _models_in(files: Iterable[str]) -> list[str | None]:
    """What to write after the colon for each model among these files; None: the folder itself."""
    listing = list(files)
    found: list[str | None] = list(gguf_files(listing))
    if "config.json" in listing and any(file.endswith((".safetensors", ".safetensors.index.json")) for file in listing):
        found.insert(0, None)
    return found


def _cached(name: HubName) -> CachedModel | None:
    try:
        return cached(name)
    except ModelLoadError:
        return None


def _by_name(revision: CachedRevisionInfo) -> dict[str, CachedFileInfo]:
    return {file.file_path.relative_to(revision.snapshot_path).as_posix(): file for file in revision.files}


def _is(revision: CachedRevisionInfo, wanted: str | None) -> bool:
    return wanted is None or wanted == revision.commit_hash or wanted in revision.refs


def _files_of(name: HubName, revision: CachedRevisionInfo) -> dict[str, CachedFileInfo]:
    files = _by_name(revision)
    try:
        return {file: files[file] for file in choose(name, files).names if file != CARD}
    except ModelLoadError:
        return {}


def _names_of(repo: str, revisions: Iterable[CachedRevisionInfo]) -> list[str]:
    found = {str(HubName(repo=repo, file=file)) for revision in revisions for file in _models_in(_by_name(revision))}
    return sorted(found)


def _whole_revisions(name: HubName, info: HFCacheInfo, revisions: Iterable[CachedRevisionInfo]) -> Removal:
    commits = tuple(one.commit_hash for one in revisions)
    freed = info.delete_revisions(*commits).expected_freed_size
    return Removal(name=name, bytes=freed, revisions=commits, files=())


def _single_files(name: HubName, everything: Iterable[Any], going: list[Any]) -> Removal:
    links = {file.file_path for file in going}
    kept = {file.blob_path for file in everything if file.file_path not in links}
    blobs = {file.blob_path: file.size_on_disk for file in going if file.blob_path not in kept}
    return Removal(name=name, bytes=sum(blobs.values()), revisions=(), files=(*sorted(links), *sorted(blobs)))
