"""Whatever JSON comes: a canonical request that can be served, or a refusal that can be sent. Never anything else."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.toy_text import ToyText, toy_info
from tidemill.core.errors import InvalidRequest
from tidemill.core.events import Event
from tidemill.frontend.prepare import Preparer
from tidemill.serve.fields import IGNORED, NOT_BUILT
from tidemill.serve.responses_request import NOT_KEPT, ResponsesBody, responses_request
from tidemill.serve.schemas import ChatBody, CompletionBody, Incoming, chat_request, completion_request

FIELDS = sorted(
    ChatBody.model_fields.keys()
    | CompletionBody.model_fields.keys()
    | ResponsesBody.model_fields.keys()
    | IGNORED
    | NOT_BUILT.keys()
    | NOT_KEPT.keys()
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 300),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from(["", "\ud800", "toy", "text", "none", 2**63, 1e300, 10**400, 1e-45]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
BODIES = st.dictionaries(st.sampled_from(FIELDS) | st.text(max_size=6), VALUES, max_size=5)


PARSERS = {
    "chat": (chat_request, {"messages": [{"role": "user", "content": "Hi"}]}),
    "completion": (completion_request, {"prompt": "Hi"}),
    "response": (lambda incoming: responses_request(incoming)[0], {"input": "Hi"}),
}


@given(body=BODIES, well_formed=st.booleans(), kind=st.sampled_from(sorted(PARSERS)))
async def test_any_object(body, well_formed, kind):
    parse, good = PARSERS[kind]
    raw = json.dumps({**body, **good} if well_formed else body).encode()
    text = ToyText()
    incoming = Incoming(raw=raw, default_model="toy", request_id="r")
    try:
        request = parse(incoming)
        if kind == "chat" and not well_formed:
            return  # what messages may hold is the chat encoder's business, not this toy's
        prepared = await Preparer(text, toy_info(text)).prepare(request, 0.0)
    except InvalidRequest as error:
        _can_be_sent(error)
    else:
        assert all(0 <= token < text.vocab_size for one in prepared for token in one.request.prompt)


def _can_be_sent(error: InvalidRequest) -> None:
    """One line of bounded length, in strict JSON."""
    message = json.loads(Event(payload=error.body()).raw, parse_constant=pytest.fail)["error"]["message"]
    assert "\n" not in message
    assert len(message) < 400


@given(raw=st.binary(max_size=60) | st.text(alphabet='{}[]":,0123456789.eE-+ntfrulsaINy\\d8 \n', max_size=40))
def test_any_bytes(raw):
    data = raw if isinstance(raw, bytes) else raw.encode()
    for parse, _ in PARSERS.values():
        with pytest.raises(InvalidRequest) as caught:
            parse(Incoming(raw=data, default_model="toy", request_id="r"))
        _can_be_sent(caught.value)
