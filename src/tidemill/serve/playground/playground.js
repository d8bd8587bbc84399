"use strict";
// Whatever comes from a model or a server goes to the page by textContent alone, so that it stays text.

const byId = (id) => document.getElementById(id);
const show = (id, text) => { byId(id).textContent = text; };

// -- the API key: kept for this tab, by the browser, and sent to this server only

const key = byId("key");
key.value = sessionStorage.getItem("tidemill-key") || "";
key.addEventListener("input", () => { sessionStorage.setItem("tidemill-key", key.value); look(); });

function headers(more) {
  return key.value ? { ...more, Authorization: "Bearer " + key.value } : { ...more };
}

async function problemOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "the server answered with status " + response.status;
  }
}

// -- the chat

const log = byId("log"), prompt = byId("prompt");
let messages = [];
let running = null; // the AbortController of the answer that is coming

function add(role, text) {
  const item = document.createElement("li"), body = document.createElement("div");
  item.className = role;
  body.className = "text";
  body.textContent = text;
  item.append(body);
  const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
  log.append(item);
  if (atEnd) log.scrollTop = log.scrollHeight;
  return item;
}

function number(id) {
  const field = byId(id);
  if (!field.checkValidity()) throw new Error(field.labels[0].firstChild.textContent.trim() + ": " + field.validationMessage);
  return field.value === "" ? undefined : Number(field.value);
}

function request() {
  const system = byId("system").value.trim();
  const body = {
    messages: system ? [{ role: "system", content: system }, ...messages] : messages,
    stream: true,
    stream_options: { include_usage: true },
  };
  for (const name of ["temperature", "top_p", "max_tokens", "seed"]) body[name] = number(name);
  if (byId("json").checked) body.response_format = { type: "json_object" };
  return JSON.stringify(body); // leaves out what is undefined
}

async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      if (line === "data: [DONE]") return;
      yield JSON.parse(line.slice(6));
    }
  }
}

async function answer(body) {
  const item = add("assistant open", "");
  const text = item.firstChild, thought = document.createElement("div"), about = document.createElement("div");
  thought.className = "text thought";
  about.className = "about";
  const began = performance.now();
  let first = 0, last = 0, usage = null, finish = null, said = "", failure = null;
  try {
    const response = await fetch("/v1/chat/completions", {
      method: "POST", headers: headers({ "Content-Type": "application/json" }), body, signal: running.signal,
    });
    if (!response.ok) throw new Error(await problemOf(response));
    for await (const event of events(response)) {
      if (event.error) throw new Error(event.error.message);
      usage = event.usage || usage;
      const choice = event.choices[0];
      if (!choice) continue;
      finish = choice.finish_reason || finish;
      const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
      if (choice.delta.reasoning_content) {
        if (!thought.isConnected) text.before(thought);
        thought.append(choice.delta.reasoning_content);
      }
      if (choice.delta.content) {
        said += choice.delta.content;
        text.append(choice.delta.content); // a string becomes a text node
      }
      if (choice.delta.content || choice.delta.reasoning_content) {
        last = performance.now();
        first = first || last;
      }
      if (atEnd) log.scrollTop = log.scrollHeight;
    }
  } catch (error) {
    failure = error.name === "AbortError" ? "stopped" : error.message;
  }
  item.classList.remove("open");
  const facts = [];
  if (usage) facts.push(usage.completion_tokens + (usage.completion_tokens === 1 ? " token" : " tokens"));
  if (first) facts.push("first after " + seconds((first - began) / 1000));
  if (usage && last > first) facts.push(((usage.completion_tokens - 1) / ((last - first) / 1000)).toFixed(1) + " tokens/s");
  if (finish) facts.push(finish);
  if (failure) facts.push(failure);
  about.textContent = facts.join(" · ");
  item.append(about);
  if (failure && failure !== "stopped") item.classList.add("failed");
  if (log.scrollHeight - log.scrollTop - log.clientHeight < 120) log.scrollTop = log.scrollHeight;
  return { said, failed: failure !== null && failure !== "stopped" };
}

async function send() {
  const text = prompt.value.trim();
  if (!text || running) return;
  messages.push({ role: "user", content: text });
  let body;
  try {
    body = request();
  } catch (error) {
    messages.pop();
    show("told", error.message);
    return;
  }
  show("told", "");
  add("user", text);
  prompt.value = "";
  const of = messages;
  running = new AbortController();
  busy(true);
  const { said, failed } = await answer(body);
  running = null;
  busy(false);
  if (failed && !said) {
    of.pop(); // as if it had not been asked: the next try begins from here
    if (of === messages && !prompt.value) prompt.value = text;
  } else {
    of.push({ role: "assistant", content: said });
  }
}

function busy(on) {
  byId("send").disabled = on;
  byId("stop").disabled = !on;
}

const stop = () => running && running.abort();

byId("form").addEventListener("submit", (event) => { event.preventDefault(); send(); });
byId("stop").addEventListener("click", () => { stop(); prompt.focus(); });
byId("clear").addEventListener("click", () => { stop(); messages = []; log.replaceChildren(); show("told", ""); prompt.focus(); });
prompt.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) { event.preventDefault(); send(); }
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") stop(); });

// -- the engine

const EVERY = 1000, WINDOW = 10, KEPT = 120;
let readings = [], rates = [], latest = null, timer = 0, looking = false;

function seconds(value) {
  return value < 1 ? Math.max(0, value * 1000).toPrecision(value < 0.1 ? 2 : 3).replace(/\.0+$/, "") + " ms" : value.toFixed(2) + " s";
}

// What was observed between two readings, as Prometheus' histogram_quantile does it: linear within a bucket.
function quantile(q, now, before) {
  const counts = now.counts.map((count, i) => count - (before ? before.counts[i] : 0));
  const all = counts[counts.length - 1], rank = q * all;
  if (!all) return null;
  const i = counts.findIndex((count) => count >= rank);
  if (i >= now.bounds.length) return now.bounds[now.bounds.length - 1];
  const low = i ? now.bounds[i - 1] : 0, under = i ? counts[i - 1] : 0;
  return low + (now.bounds[i] - low) * (rank - under) / (counts[i] - under);
}

function pair(name, now, before) {
  let from = before[name];
  if (now[name].count === from.count) from = null; // nothing lately: what there was since the start
  const values = [0.5, 0.95].map((q) => quantile(q, now[name], from));
  return values[0] === null ? "–" : values.map(seconds).join(" · ");
}

function state(kind, text) {
  byId("state").className = "state " + kind;
  if (byId("state").textContent !== text) show("state", text);
}

function draw(now) {
  const old = readings[readings.length - 1];
  if (old && (now.tokens.generated < old.tokens.generated || now.restarts !== old.restarts || now.time <= old.time)) readings = []; // a new engine
  const previous = readings[readings.length - 1] || now;
  readings.push(now);
  readings = readings.filter((one) => now.time - one.time <= WINDOW + 0.5);
  const before = readings[0], passed = previous === now ? 0 : now.time - previous.time;
  const rate = (of) => (passed ? (now.tokens[of] - previous.tokens[of]) / passed : 0);
  rates.push(rate("generated"));
  rates = rates.slice(-KEPT);
  latest = now;
  show("model", now.model);
  show("executor", now.executor && " · " + now.executor);
  state(now.ready ? "good" : "bad", now.ready ? (now.running || now.waiting ? "busy" : "ready") : now.problem);
  show("running", now.running);
  show("waiting", now.waiting);
  show("rate", rate("generated").toFixed(rate("generated") < 10 ? 1 : 0));
  show("promptrate", rate("prompt").toFixed(0));
  show("ttft", pair("time_to_first_token", now, before));
  show("itl", pair("time_per_output_token", now, before));
  show("hits", now.prefix.asked_tokens ? Math.round(100 * now.prefix.hit_tokens / now.prefix.asked_tokens) + " %" : "–");
  show("step", now.steps.count ? seconds(now.steps.last_seconds) : "–");
  show("held", now.kv.held);
  show("cached", now.kv.cached);
  show("free", now.kv.free);
  show("kvsize", now.kv.blocks + " × " + now.kv.block_size + " tokens");
  const notes = ["Slots unused: " + Math.round(100 * now.kv.fragmentation) + " %", "preemptions:\u00a0" + now.preemptions,
    "engine restarts:\u00a0" + now.restarts, "Tidemill\u00a0" + now.version];
  show("notes", notes.join("\u00a0· ")); // a line may end with a dot and does not begin with one
  byId("map").setAttribute("aria-label", `KV blocks: ${now.kv.held} held, ${now.kv.cached} cached, ${now.kv.free} free`);
  graph();
  map();
}

function graph() {
  const peak = Math.max(1, ...rates);
  const points = rates.map((rate, i) => (KEPT - rates.length + i + 1) + "," + (29 - 27 * rate / peak).toFixed(2));
  byId("line").setAttribute("points", points.join(" "));
  byId("area").setAttribute("points", points.length ? `${KEPT - rates.length + 1},30 ${points.join(" ")} ${KEPT},30` : "");
  show("peak", "peak " + peak.toFixed(0));
}

// Each square is a block, or as many as are needed for all to fit; squares are in order of use, not of address.
function map() {
  const canvas = byId("map"), box = canvas.getBoundingClientRect(), scale = window.devicePixelRatio || 1;
  if (!latest || !box.width) return;
  canvas.width = box.width * scale;
  canvas.height = box.height * scale;
  const { blocks, held, cached } = latest.kv, context = canvas.getContext("2d"), style = getComputedStyle(document.documentElement);
  const most = Math.floor(box.width / 8) * Math.floor(box.height / 8), cells = Math.min(blocks, most);
  if (!cells) return;
  let side = Math.floor(Math.min(24, box.height));
  while (side > 8 && Math.floor(box.width / side) * Math.floor(box.height / side) < cells) side--;
  const columns = Math.floor(box.width / side), share = blocks / cells;
  const colours = ["--held", "--cached", "--free"].map((name) => style.getPropertyValue(name));
  context.scale(scale, scale);
  for (let i = 0; i < cells; i++) {
    // A square shows what its first block is, so that a single held block is seen among thousands.
    const block = i * share;
    context.fillStyle = colours[block < held ? 0 : block < held + cached ? 1 : 2];
    context.fillRect((i % columns) * side, Math.floor(i / columns) * side, side - 1.5, side - 1.5);
  }
}

async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  try {
    const response = await fetch("/v1/engine/stats", { headers: headers(), signal: AbortSignal.timeout(8000) });
    if (response.ok) draw(await response.json());
    else if (response.status === 401) { byId("settings").open = true; state("bad", "an API key is needed: see Settings"); }
    else state("bad", await problemOf(response));
  } catch {
    state("bad", "the server does not answer");
  }
  looking = false;
  timer = setTimeout(look, EVERY);
}

document.addEventListener("visibilitychange", look);
window.addEventListener("resize", map);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", map);
look();
