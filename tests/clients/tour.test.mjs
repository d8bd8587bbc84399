// The tour by OpenAI's client for Node.js: `node --test`, with the servers' addresses and keys in the environment.

import assert from "node:assert/strict";
import { test } from "node:test";

import OpenAI from "openai";

const { TOUR, KEY, FRUGAL, EMBEDDER, STOPPING, SLOW, MAX_BODY } = process.env;
const ANSWERS = JSON.parse(process.env.ANSWERS);
const FUNCTIONS = JSON.parse(process.env.FUNCTIONS);
const TOOLS = JSON.parse(process.env.TOOLS);
const connect = (server, apiKey = "none", more = {}) =>
  new OpenAI({ baseURL: `${server}/v1`, apiKey, maxRetries: 0, ...more });
const client = connect(TOUR, KEY);
const asked = (content, more = {}) => ({ model: "m", messages: [{ role: "user", content }], temperature: 0, ...more });

test("chat and stream", async () => {
  const answer = await client.chat.completions.create(asked("What is a tide mill?"));
  assert.equal(answer.choices[0].message.content, ANSWERS.mill[0]);
  let text = "";
  let usage;
  let pieces = 0;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const piece of await client.chat.completions.create(asked("What is a tide mill?", options))) {
    text += piece.choices[0]?.delta.content ?? "";
    usage = piece.usage ?? usage;
    pieces += 1;
  }
  assert.equal(text, ANSWERS.mill[0]);
  assert.ok(pieces > 20);
  assert.deepEqual(usage.completion_tokens, answer.usage.completion_tokens);
});

for (const [question, rounds, last] of [
  ["How is the sea in Brest?", [1, 1], ANSWERS.two_rounds[2]],
  ["Compare Brest and Cardiff.", [2], ANSWERS.side_by_side[1]],
]) {
  for (const streamed of [false, true]) {
    test(`rounds of tools: ${question} ${streamed ? "streamed" : "whole"}`, async () => {
      const messages = asked(question).messages;
      const calls = [];
      for (;;) {
        const request = { model: "m", messages, tools: TOOLS, temperature: 0 };
        const said = streamed
          ? await client.chat.completions.stream(request).finalMessage()
          : (await client.chat.completions.create(request)).choices[0].message;
        if (!said.tool_calls?.length) {
          assert.equal(said.content, last);
          break;
        }
        calls.push(said.tool_calls.length);
        messages.push(said);
        for (const call of said.tool_calls) {
          const { place } = JSON.parse(call.function.arguments);
          messages.push({ role: "tool", tool_call_id: call.id, content: FUNCTIONS[call.function.name][place] });
        }
      }
      assert.deepEqual(calls, rounds);
    });
  }
}

test("the runner of tools calls the functions itself", async () => {
  const tools = TOOLS.map((tool) => ({
    type: "function",
    function: { ...tool.function, parse: JSON.parse, function: ({ place }) => FUNCTIONS[tool.function.name][place] },
  }));
  const runner = client.chat.completions.runTools({ ...asked("How is the sea in Brest?"), tools });
  assert.equal(await runner.finalContent(), ANSWERS.two_rounds[2]);
});

test("structured output", async () => {
  const schema = { type: "object", properties: { place: { enum: ["Ys", "Avalon"] } }, required: ["place"] };
  const format = { type: "json_schema", json_schema: { name: "sunken", schema } };
  const answer = await client.chat.completions.create(asked("Hello", { response_format: format }));
  assert.ok(["Ys", "Avalon"].includes(JSON.parse(answer.choices[0].message.content).place));
});

test("embeddings", async () => {
  const texts = JSON.parse(process.env.TEXTS);
  const vectors = JSON.parse(process.env.VECTORS);
  const answer = await connect(EMBEDDER).embeddings.create({ model: "m", input: texts });
  assert.equal(answer.data.length, texts.length);
  for (const { index, embedding } of answer.data) {
    assert.equal(embedding.length, vectors[index].length);
    embedding.forEach((value, at) => assert.ok(Math.abs(value - vectors[index][at]) < 1e-5));
  }
});

for (const [name, call, kind, status, code] of [
  ["bad value", () => client.chat.completions.create(asked("Hello", { temperature: -1 })), OpenAI.BadRequestError, 400, "invalid_value"],
  ["misspelt field", () => client.chat.completions.create(asked("Hello", { temprature: 1 })), OpenAI.BadRequestError, 400, "invalid_value"],
  ["feature that is not here", () => client.chat.completions.create(asked("Hello", { typical_p: 0.5 })), OpenAI.BadRequestError, 400, "unsupported_parameter"],
  ["long prompt", () => client.chat.completions.create(asked("a".repeat(4000))), OpenAI.BadRequestError, 400, "context_length_exceeded"],
  ["passed deadline", () => client.chat.completions.create(asked("Hello", { timeout: 1e-6 })), OpenAI.InternalServerError, 504, "deadline_exceeded"],
  ["wrong key", () => connect(TOUR, "tm-nobody").models.list(), OpenAI.AuthenticationError, 401, "invalid_api_key"],
  ["other model", () => client.chat.completions.create(asked("Hello", { model: "other" })), OpenAI.NotFoundError, 404, "model_not_found"],
  ["large body", () => client.chat.completions.create(asked("a".repeat(Number(MAX_BODY)))), OpenAI.APIError, 413, "payload_too_large"],
  ["used-up key", () => connect(TOUR, FRUGAL).chat.completions.create(asked("Hello")), OpenAI.RateLimitError, 429, "rate_limit_exceeded"],
  ["stopping server", () => connect(STOPPING).chat.completions.create(asked("Hello")), OpenAI.InternalServerError, 503, "draining"],
]) {
  test(`refused: ${name}`, async () => {
    await assert.rejects(call, (error) => {
      assert.ok(error instanceof kind);
      assert.equal(error.status, status);
      assert.equal(error.code, code);
      return true;
    });
  });
}

test("a stream that is left ends the work", async () => {
  const options = { stream: true, max_tokens: 1900 };
  const stream = await connect(SLOW).chat.completions.create(asked("What do the waves do?", options));
  for await (const piece of stream) {
    assert.ok(piece.choices);
    break;
  }
});
