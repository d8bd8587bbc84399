"""Names on the hub, and the files they mean."""

from __future__ import annotations

import pytest

from tidemill.core.errors import ConfigError, ModelLoadError
from tidemill.models.loading.hub_files import choose, gguf_files
from tidemill.models.loading.hub_name import HubName, parse_hub_name

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(
    ("text", "repo", "file", "revision"),
    [
        ("org/name", "org/name", None, None),
        ("org/name-1.5_b", "org/name-1.5_b", None, None),
        ("org/name:Q4_K_M", "org/name", "Q4_K_M", None),
        ("org/name@v1.0", "org/name", None, "v1.0"),
        ("org/name@refs/pr/3", "org/name", None, "refs/pr/3"),
        (f"org/name:q8_0@{COMMIT}", "org/name", "q8_0", COMMIT),
        ("org/name:folder/x-Q8_0.gguf", "org/name", "folder/x-Q8_0.gguf", None),
    ],
)
def test_a_name_has_up_to_three_parts(text: str, repo: str, file: str | None, revision: str | None) -> None:
    name = parse_hub_name(text)
    assert name == HubName(repo=repo, file=file, revision=revision)
    assert str(name) == text


@pytest.mark.parametrize(
    "text",
    ["name", "a/b/c", "../up", "/org/name", "org/", "org/x.gguf", "org/x:", "org/x@", "org/x@../y", "org/x:a b", "ö/x"],
)
def test_other_texts_are_no_names(text: str) -> None:
    assert parse_hub_name(text) is None


def test_the_revision_may_come_from_the_setting_but_not_from_both() -> None:
    name = HubName(repo="org/name", file="Q8_0")
    assert str(name.pinned("v1")) == "org/name:Q8_0@v1"
    assert name.pinned("v1").pinned("v1").model == "org/name:Q8_0"
    assert name.pinned(None) is name
    with pytest.raises(ConfigError, match="revision is v2, but org/name:Q8_0@v1 names another one; leave one out"):
        name.pinned("v1").pinned("v2")
    with pytest.raises(ConfigError, match=r"must be a branch, a tag or a commit, not '\.\./x'"):
        name.pinned("../x")


def test_only_a_whole_commit_is_one() -> None:
    assert HubName(repo="o/n", revision=COMMIT).is_commit
    assert not HubName(repo="o/n", revision=COMMIT[:12]).is_commit
    assert not HubName(repo="o/n").is_commit


MANY = [
    "README.md",
    "Tiny-Q4_K_M.gguf",
    "Tiny-Q4_K_S.gguf",
    "Tiny-UD-Q4_K_M.gguf",
    "tiny_f16.gguf",
    "Q8_0/Tiny-Q8_0-00001-of-00002.gguf",
    "Q8_0/Tiny-Q8_0-00002-of-00002.gguf",
    "mmproj-Tiny-F16.gguf",
    "Tiny.imatrix.gguf",
    "convert.py",
]


def chosen(text: str, listing: list[str]) -> tuple[str | None, tuple[str, ...]]:
    name = parse_hub_name(text)
    assert name is not None
    files = choose(name, listing)
    return files.first, files.names


def refusal(text: str, listing: list[str]) -> str:
    with pytest.raises(ModelLoadError) as caught:
        chosen(text, listing)
    return caught.value.message


@pytest.mark.parametrize(
    ("tag", "file"),
    [
        ("Q4_K_S", "Tiny-Q4_K_S.gguf"),
        ("q4_k_m", "Tiny-Q4_K_M.gguf"),
        ("q4_k_s", "Tiny-Q4_K_S.gguf"),
        ("UD-Q4_K_M", "Tiny-UD-Q4_K_M.gguf"),
        ("Tiny-Q4_K_M", "Tiny-Q4_K_M.gguf"),
        ("Tiny-Q4_K_M.gguf", "Tiny-Q4_K_M.gguf"),
        ("F16", "tiny_f16.gguf"),
    ],
)
def test_a_tag_is_the_end_of_a_file_name_whatever_its_case(tag: str, file: str) -> None:
    assert chosen(f"org/many:{tag}", MANY) == (file, (file, "README.md"))


def test_the_parts_of_a_split_file_come_together() -> None:
    parts = ("Q8_0/Tiny-Q8_0-00001-of-00002.gguf", "Q8_0/Tiny-Q8_0-00002-of-00002.gguf")
    assert chosen("org/many:q8_0", MANY) == (parts[0], (*parts, "README.md"))
    assert chosen("org/one", [*parts, "x.py"]) == (parts[0], parts)


@pytest.mark.parametrize("tag", ["K_M", "_K_M", "4_K_M", "Q4_K", "M", "Q9"])
def test_a_piece_of_a_tag_fits_nothing(tag: str) -> None:
    if tag.startswith("_"):
        assert parse_hub_name(f"org/many:{tag}") is None
        return
    assert refusal(f"org/many:{tag}", MANY) == (
        f"org/many:{tag}: this repository has no GGUF file {tag}; there are: org/many:Q8_0, org/many:Q4_K_M, "
        "org/many:Q4_K_S, org/many:UD-Q4_K_M, org/many:F16"
    )


def test_what_fits_several_is_refused_with_their_names() -> None:
    listing = ["a/x-Q8_0.gguf", "b/x-Q8_0.gguf", "x-F16.gguf"]
    assert refusal("org/n:Q8_0", listing) == (
        "org/n:Q8_0: this repository has several GGUF models, name one: org/n:a/x-Q8_0, org/n:b/x-Q8_0"
    )
    assert chosen("org/n:a/x-Q8_0", listing)[0] == "a/x-Q8_0.gguf"


def test_without_a_tag_there_must_be_one_model() -> None:
    assert chosen("org/one", ["tiny.Q8_0.gguf", "config.json"]) == ("tiny.Q8_0.gguf", ("tiny.Q8_0.gguf",))
    assert "has several GGUF models, name one: org/many:Q8_0, org/many:Q4_K_M" in refusal("org/many", MANY)


def test_equal_tags_are_told_apart_by_the_files_own_names() -> None:
    assert list(gguf_files(["a/x-Q8_0.gguf", "b/x-Q8_0.gguf", "c.gguf"])) == ["a/x-Q8_0", "b/x-Q8_0", "c"]
    assert chosen("org/n:b/x-Q8_0", ["a/x-Q8_0.gguf", "b/x-Q8_0.gguf"])[0] == "b/x-Q8_0.gguf"


FOLDER = ["config.json", "tokenizer.json", "README.md", "modeling.py", "pytorch_model.bin", "model.safetensors"]


def test_of_a_safetensors_repository_only_what_is_read_is_taken() -> None:
    assert chosen("org/n", [*FOLDER, "x-Q8_0.gguf"]) == (
        None,
        ("README.md", "config.json", "tokenizer.json", "model.safetensors"),
    )
    shards = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
    names = chosen("org/n", [*FOLDER, *shards, "model.safetensors.index.json"])[1]
    assert names[3:] == ("model.safetensors.index.json", *shards)


def test_a_tag_asks_for_the_gguf_file_even_beside_safetensors() -> None:
    assert chosen("org/n:Q8_0", [*FOLDER, "x-Q8_0.gguf"])[0] == "x-Q8_0.gguf"
    assert refusal("org/n:Q8_0", FOLDER) == "org/n:Q8_0: this Hugging Face repository has no .gguf file"


def test_a_repository_without_a_model_is_refused() -> None:
    assert refusal("org/n", ["config.json", "pytorch_model.bin"]) == (
        "org/n: this Hugging Face repository has neither a config.json with safetensors nor a .gguf file"
    )
