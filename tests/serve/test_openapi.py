"""The OpenAPI document says what the server does: every route and field, bounds that are kept, answers as described."""

from __future__ import annotations

import json

import jsonschema
import pytest

from tidemill.core.config import ServerConfig
from tidemill.core.embedding import Embedding
from tidemill.core.strategy import STRATEGIES
from tidemill.serve.anthropic_request import ANTHROPIC_IGNORED, COUNTED_FIELDS, MESSAGES_FIELDS
from tidemill.serve.app import ENDPOINTS, make_app
from tidemill.serve.embedding_schema import EmbeddingBody
from tidemill.serve.fields import IGNORED, NOT_BUILT
from tidemill.serve.openapi.answers import ANSWERS
from tidemill.serve.openapi.document import openapi_document
from tidemill.serve.openapi.fields import VALUES
from tidemill.serve.openapi.requests import REQUESTS
from tidemill.serve.responses_request import NOT_KEPT, ResponsesBody
from tidemill.serve.schemas import ChatBody, CompletionBody
from tidemill.serve.text_schemas import DetokenizeBody, TemplateBody, TokenizeBody

DOCUMENT = openapi_document(ENDPOINTS)
HI = [{"role": "user", "content": "Hi"}]


def valid(schema, value) -> bool:
    return jsonschema.Draft202012Validator(schema).is_valid(value)


async def test_it_is_served(http):
    async with http([]) as served:
        assert (await served.client.get("/openapi.json")).json() == json.loads(json.dumps(DOCUMENT))


async def test_it_says_where_a_key_is_asked_for(http):
    async with http([], config=ServerConfig(api_keys=("k",))) as served:
        assert (await served.client.get("/openapi.json")).status_code == 401
        found = (await served.client.get("/openapi.json", headers={"authorization": "Bearer k"})).json()
        for path, item in found["paths"].items():
            ((method, operation),) = item.items()
            if "{" not in path:
                answer = await served.client.request(method, path)
                assert (answer.status_code == 401) == ("security" in operation), path


async def test_every_route_with_its_methods(http):
    async with http([]) as served:
        app = make_app(served.backend, served.config)
    routed = {
        (method.lower(), route.path_format) for route in app.routes for method in route.methods if method != "HEAD"
    }
    described = {(method, path) for path, item in DOCUMENT["paths"].items() for method in item}
    assert described == routed
    with_body = {
        (method, path) for path, item in DOCUMENT["paths"].items() for method in item if "requestBody" in item[method]
    }
    assert with_body == REQUESTS.keys()
    assert routed - with_body - {("get", path) for _, path in routed} == {
        ("post", "/v1/cache/reset"),
        ("post", "/drain"),
        ("post", "/admin/reload"),
    }
    assert routed - ANSWERS.keys() == {("get", "/metrics"), ("get", "/openapi.json")}


@pytest.mark.parametrize("path", [path for _, path in REQUESTS])
def test_the_schemas_are_schemas(path):
    jsonschema.Draft202012Validator.check_schema(REQUESTS["post", path])
    jsonschema.Draft202012Validator.check_schema(ANSWERS["post", path])


NOT_OURS = IGNORED | NOT_BUILT.keys()
FIELDS = {
    "/v1/chat/completions": ChatBody.model_fields.keys() | NOT_OURS,
    "/v1/completions": CompletionBody.model_fields.keys() | NOT_OURS,
    "/v1/responses": ResponsesBody.model_fields.keys() | IGNORED | NOT_KEPT.keys(),
    "/v1/messages": MESSAGES_FIELDS,
    "/v1/messages/count_tokens": COUNTED_FIELDS | {*ANTHROPIC_IGNORED},
    "/v1/embeddings": EmbeddingBody.model_fields.keys() | NOT_OURS,
    "/tokenize": TokenizeBody.model_fields.keys() | NOT_OURS,
    "/detokenize": DetokenizeBody.model_fields.keys() | NOT_OURS,
    "/apply-template": TemplateBody.model_fields.keys() | NOT_OURS,
    "/v1/load_lora_adapter": {"lora_name", "lora_path", "load_inplace", "base_model_name"} | IGNORED,
    "/v1/unload_lora_adapter": {"lora_name", "lora_int_id"} | IGNORED,
}


@pytest.mark.parametrize("path", [path for _, path in REQUESTS])
async def test_every_field(http, path):
    described = DOCUMENT["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]["properties"]
    assert described.keys() == FIELDS[path]
    async with http([]) as served:
        for name in (*described, "unheard_of"):
            said = (await served.client.post(path, json={name: 1.5})).json()["error"]["message"]
            assert ("there is no field" in said) == (name == "unheard_of"), name


def test_the_strategies_that_a_request_chooses():
    chosen = {one.name for one in STRATEGIES.values() if one.per_request}
    assert VALUES["strategies"]["properties"].keys() == chosen


EDGES = [
    ("temperature", 100, 100.1),
    ("temperature", 0, -0.1),
    ("top_p", 1, 0),
    ("top_k", -1, -2),
    ("min_p", 1, 1.1),
    ("repetition_penalty", 10, 0),
    ("presence_penalty", -2, -2.1),
    ("frequency_penalty", 2, 2.1),
    ("seed", 2**63 - 1, 2**63),
    ("n", 2, 129),
    ("max_tokens", 1, 0),
    ("max_completion_tokens", 2**31 - 1, 2**31),
    ("min_tokens", 0, -1),
    ("stop", ["a"] * 64, ["a"] * 65),
    ("stop", "a", ""),
    ("bad_words", ["a"] * 256, ["a"] * 257),
    ("bad_words", ["a"], [""]),
    ("prompt_logprobs", 20, 21),
    ("allowed_token_ids", [1], []),
    ("stop_token_ids", [0], [-1]),
    ("logit_bias", {"1": 100}, {"1": 101}),
    ("logit_bias", {"0": 0}, {"01": 0}),
    ("priority", -100, 101),
    ("expected_output_tokens", 1, 0),
    ("cache_salt", "a" * 256, "a" * 257),
    ("timeout", 86400, 0),
    ("strategies", {"prefix-cache": "off"}, {"prefix-cache": "no"}),
    ("strategies", {}, {"pace": "off"}),
    ("response_format", {"type": "json_object"}, ""),
    ("response_format", {"type": "text"}, {"type": "xml"}),
    ("structured_outputs", {"choice": ["a"]}, ""),
    ("guided_json", {"type": "object"}, 1),
    ("guided_json", '{"type": "object"}', ""),
    ("guided_regex", "", 1),
    ("guided_choice", ["a"], ""),
    ("grammar", "", 1),
    ("metadata", {"a": 1}, None),
    ("modalities", ["text"], ["audio"]),
    ("stream_options", None, {"usage": True}),
    ("model", None, 1),
    ("temprature", None, None),
]
"""Field, a value that is taken, and one that is not (None: there is none)."""


@pytest.mark.parametrize(("name", "good", "bad"), EDGES, ids=str)
async def test_what_it_allows_is_taken_and_what_it_does_not_is_refused(http, name, good, bad):
    schema = REQUESTS["post", "/v1/completions"]
    more = {"max_tokens": 1} if name not in ("max_tokens", "max_completion_tokens") else {}
    async with http(list(b"ok") * 300, order=("priority", "srf")) as served:
        for value, right in ((good, name != "temprature"), (bad, bad is None and name != "temprature")):
            body = {"prompt": "Hi", **more, name: value}
            assert valid(schema, body) == right, value
            answer = await served.complete(**body)
            if right:
                assert answer.status_code == 200 or answer.json()["error"]["code"] == "context_length_exceeded", value
            else:
                assert answer.status_code == 400, value
                assert answer.json()["error"]["param"].startswith(name)


CALLED = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
ITEMS = {
    "/v1/responses": [
        ("input", "Hi", []),
        ("input", [{"role": "user", "content": "Hi"}], [{"role": "tool", "content": "Hi"}]),
        ("input", [{"type": "message", "role": "user", "content": []}], [{"role": "user"}]),
        ("input", [*HI, {"type": "reasoning", "content": []}], [*HI, {"type": "reasoning", "content": ""}]),
        ("input", [*HI, {"type": "reasoning", "summary": None}], [*HI, {"type": "reasoning", "summary": 0}]),
        ("input", [*HI, {"type": "reasoning"}], [*HI, {"type": "reasoning", "encrypted_content": 1}]),
        ("input", [*HI, CALLED, {"type": "function_call_output", "call_id": "c", "output": "x"}], [{"type": "file"}]),
        ("input", [*HI, {**CALLED, "status": 1}], [{**CALLED, "arguments": {}}]),
        ("max_output_tokens", 1, 0),
        ("include", [], ["file_search_call.results"]),
        ("reasoning", {"summary": "auto"}, {"summary": "concise"}),
        ("text", {"format": {"type": "text"}}, {"format": {"type": "xml"}}),
        ("text", {"format": {"type": "json_object"}}, {"format": {"type": "json_schema", "name": "a"}}),
        ("text", {"verbosity": None}, {"verbosity": "low"}),
        ("tools", [], [{"type": "web_search"}]),
        ("tools", None, [{"type": "function", "function": {"name": "f"}}]),
        ("tool_choice", "none", "any"),
        ("top_logprobs", None, 21),
        ("truncation", "disabled", "auto"),
        ("metadata", {"a": "b"}, {"a": 1}),
        ("background", False, True),
        ("previous_response_id", None, "resp_1"),
        ("thinking_budget", None, -1),
    ],
    "/v1/messages": [
        ("messages", HI, []),
        ("messages", [*HI, {"role": "assistant", "content": []}], [{"role": "system", "content": "Hi"}]),
        ("messages", [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], [{"role": "user", "content": 1}]),
        ("messages", HI, [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]),
        ("messages", HI, [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": 1}]}]),
        ("messages", HI, [*HI, {"role": "assistant", "content": [{"type": "thinking"}]}]),
        ("max_tokens", 1, 0),
        ("system", "", 0),
        ("system", [{"type": "text", "text": "Hi"}], [{"type": "image"}]),
        ("stop_sequences", [], ""),
        ("stop_sequences", ["a"] * 64, ["a"] * 65),
        ("stop_sequences", ["a"], [""]),
        ("tools", [], False),
        ("tools", None, [{"name": "f"}]),
        ("tools", None, [{"name": "f", "input_schema": {}, "type": "web_search_20250305"}]),
        (
            "tool_choice",
            {"type": "auto", "disable_parallel_tool_use": True},
            {"type": "auto", "disable_parallel_tool_use": 1},
        ),
        ("tool_choice", {"type": "none"}, 0),
        ("thinking", {"type": "disabled"}, {"type": "enabled"}),
        ("thinking", {"type": "disabled", "display": "summarized"}, {"type": "disabled", "budget_tokens": 1024}),
        ("output_config", None, {}),
        ("metadata", {"user_id": "a"}, None),
    ],
}
ITEMS["/v1/messages/count_tokens"] = [edge for edge in ITEMS["/v1/messages"] if edge[0] in COUNTED_FIELDS]
"""As EDGES, on other routes. A bad null: there is none."""
LEAST = {"/v1/responses": {"input": "Hi"}, "/v1/messages": {"messages": HI, "max_tokens": 2}}
LEAST["/v1/messages/count_tokens"] = {"messages": HI}


@pytest.mark.parametrize(
    ("path", "name", "good", "bad"), [(path, *edge) for path, edges in ITEMS.items() for edge in edges], ids=str
)
async def test_the_same_where_values_are_other_than_in_chats(http, path, name, good, bad):
    schema = REQUESTS["post", path]
    async with http(list(b"ok")) as served:
        body = {**LEAST[path], name: good}
        assert valid(schema, body)
        answer = await served.client.post(path, json=body)
        assert answer.status_code == 200, answer.text
        if bad is not None:
            body = {**LEAST[path], name: bad}
            assert not valid(schema, body)
            answer = await served.client.post(path, json=body)
            assert answer.status_code == 400
            assert name in answer.json()["error"]["message"]


def test_values_are_of_fields_that_there_are():
    fields = {name for schema in REQUESTS.values() for name in schema["properties"]}
    assert VALUES.keys() <= fields


ASKED = [
    ("/v1/chat/completions", {"messages": HI, "logprobs": True, "top_logprobs": 1, "prompt_logprobs": 1, "stop": "k"}),
    ("/v1/completions", {"prompt": "Hi", "echo": True, "logprobs": 1, "prompt_logprobs": 1, "n": 2}),
    ("/v1/responses", {"input": "Hi", "include": ["message.output_text.logprobs"], "top_logprobs": 1}),
    ("/v1/responses", {"input": HI, "max_output_tokens": 1, "metadata": {"a": "b"}, "reasoning": {"summary": "auto"}}),
    ("/v1/messages", {"messages": HI, "max_tokens": 4}),
    ("/v1/messages/count_tokens", {"messages": HI}),
    ("/v1/embeddings", {"input": ["a", "b"]}),
    ("/v1/embeddings", {"input": "a", "encoding_format": "base64"}),
    ("/tokenize", {"prompt": "Hi", "return_token_strs": True}),
    ("/detokenize", {"tokens": [84, 104]}),
    ("/apply-template", {"messages": HI}),
]


@pytest.mark.parametrize(("path", "body"), ASKED, ids=str)
async def test_answers_are_as_described(http, path, body):
    embedding = Embedding(pooling="mean", normalize=True, width=4) if path.endswith("embeddings") else None
    assert valid(REQUESTS["post", path], body)
    async with http(list(b"ok"), embedding=embedding) as served:
        answer = await served.client.post(path, json=body)
        assert answer.status_code == 200
        jsonschema.validate(answer.json(), ANSWERS["post", path])
        refused = await served.client.post(path, json={})
        shape = DOCUMENT["paths"][path]["post"]["responses"]["400"]["content"]["application/json"]["schema"]["$ref"]
        jsonschema.validate(refused.json(), DOCUMENT["components"]["schemas"][shape.rpartition("/")[2]])


@pytest.mark.parametrize("path", [path for method, path in ANSWERS if method == "get" and "{" not in path])
async def test_what_is_read_is_as_described(http, path):
    async with http([]) as served:
        jsonschema.validate((await served.client.get(path)).json(), ANSWERS["get", path])
        name = (await served.client.get("/v1/models")).json()["data"][0]["id"]
        jsonschema.validate((await served.client.get(f"/v1/models/{name}")).json(), ANSWERS["get", "/v1/models/{id}"])
