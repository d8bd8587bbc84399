"use strict";
// Whatever comes from a replica or a caller goes to the page by textContent alone, so that it stays text.

const byId = (id) => document.getElementById(id);
const EVERY = 1000;
const MOST = 300; // rows; the filter finds the others
let timer = 0, looking = false, before = null, found = null;

const key = byId("key");
key.value = sessionStorage.getItem("tidemill-key") || "";
key.addEventListener("input", () => { sessionStorage.setItem("tidemill-key", key.value); look(); });
byId("filter").addEventListener("input", () => { if (found) draw(); });

function state(kind, text) {
  byId("state").className = "state " + kind;
  byId("state").textContent = text;
}

function cell(content, kind) {
  const made = document.createElement("td");
  if (kind) made.className = kind;
  if (content instanceof Node) made.append(content);
  else made.textContent = content === null || content === undefined ? "" : String(content);
  return made;
}

function row(...cells) {
  const made = document.createElement("tr");
  made.append(...cells);
  return made;
}

function fill(id, rows, none) {
  if (!rows.length) rows = [row(cell(none, "dim"))];
  byId(id).replaceChildren(...rows);
}

const sum = (counts) => Object.values(counts).reduce((all, one) => all + one, 0);
const seconds = (value) => value < 1 ? Math.round(1000 * value) + " ms" : value.toFixed(1) + " s";

function rate(now, then) {
  if (!before) return "";
  const took = (found.seen - before.seen) / 1000;
  return (Math.max(0, now - (then || 0)) / took).toFixed(1);
}

function bar(share) {
  const made = document.createElement("span"), track = document.createElement("span"), full = document.createElement("i");
  track.className = "bar";
  full.style.width = Math.round(100 * Math.min(1, share)) + "%";
  track.append(full);
  made.append(track, Math.round(100 * share) + " %");
  return made;
}

function stateOf(one) {
  if (one.draining) return ["draining", "dim"];
  return one.healthy ? ["well", ""] : [one.problem || "not well", "bad"];
}

function drawReplicas() {
  const then = {};
  for (const one of before ? before.replicas : []) then[one.name] = sum(one.attempts);
  const words = byId("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const kept = found.replicas.filter((one) => {
    const text = [one.name, one.engine, one.url, one.models.join(" "), stateOf(one)[0], Object.entries(one.labels).flat().join(" ")].join(" ").toLowerCase();
    return words.every((word) => text.includes(word));
  });
  byId("count").textContent = kept.length === found.replicas.length ? kept.length : kept.length + " of " + found.replicas.length;
  fill("replicas", kept.slice(0, MOST).map((one) => {
    const [text, kind] = stateOf(one), gauges = one.gauges || {};
    const open = Object.entries(one.breakers).filter(([, state]) => state !== "closed");
    return row(
      cell(one.name), cell(text, kind), cell(one.engine, "dim"), cell(one.models.join(", "), "wide"),
      cell(rate(sum(one.attempts), then[one.name]), "number"), cell(one.in_flight, "number"), cell(one.waiting, "number"),
      cell(seconds(one.queue_seconds), "number"),
      cell(typeof gauges.kv_used === "number" ? bar(gauges.kv_used) : ""),
      cell(one.pace.measured && one.pace.prefill_token ? Math.round(1 / one.pace.prefill_token) + " tok/s" : "", "number"),
      cell(one.known_blocks, "number"),
      cell(one.attempts.failed || 0, one.attempts.failed ? "number bad" : "number"),
      cell(open.length ? open.map(([model, state]) => (model || "any") + ": " + state).join(", ") : "closed", open.length ? "bad" : "dim"),
    );
  }), "no replicas");
}

function drawRoutes() {
  const rows = Object.entries(found.routes).filter(([route]) => route.startsWith("/v1/")).map(([route, counts]) => {
    const all = sum(counts), of = (digit) => Object.entries(counts).reduce((total, [status, count]) => total + (status[0] === digit ? count : 0), 0);
    const then = before && before.routes[route] ? sum(before.routes[route]) : 0;
    return row(cell(route), cell(rate(all, then), "number"), cell(all, "number"), cell(of("4"), "number"), cell(of("5"), of("5") ? "number bad" : "number"));
  });
  fill("routes", rows, "no requests yet");
}

function drawFacts() {
  const cache = found.cache, asked = cache.requests, hits = asked.hit || 0, all = sum(asked), broken = found.broken_streams;
  const facts = [
    ["Cache", cache.on ? cache.answers + " answers, " + (cache.bytes / 2 ** 20).toFixed(1) + " MiB" : "off"],
    ["Found in it", all ? Math.round(100 * hits / all) + " % of " + all + ", " + (asked.joined || 0) + " joined" : "nothing was asked"],
    ["Broken streams", (broken.resumed || 0) + " gone on with, " + (broken.ended || 0) + " ended with an error"],
    ["Retries refused", found.retries_refused + " for want of budget"],
    ["Redis", found.redis ? found.redis.problem || "answers" : "not used"],
  ];
  byId("facts").replaceChildren(...facts.flatMap(([name, value]) => {
    const term = document.createElement("dt"), said = document.createElement("dd");
    term.textContent = name;
    said.textContent = value;
    return [term, said];
  }));
}

function drawEngines() {
  const rows = found.engines.map((group) => {
    const states = group.engines.map((one) => one.name + " " + one.state).join(", ");
    return row(cell(group.name), cell(group.wanted + " wanted, " + group.replicas.min + " to " + group.replicas.max), cell(states, "wide"), cell(group.problem || group.crashes + " crashes", group.problem ? "bad wide" : "dim"));
  });
  rows.push(...found.discovery.map((one) => row(cell(one.place, "wide"), cell(one.replicas.length + " found"), cell(""), cell(one.problem || "", "bad wide"))));
  fill("engines", rows, "none");
}

function drawDecisions() {
  fill("decisions", found.decisions.map((one) => row(
    cell(new Date(1000 * one.at).toLocaleTimeString(), "dim"), cell(one.id, "wide"), cell(one.path), cell(one.model, "wide"),
    cell(one.replicas.join(", then ")), cell(one.reason, "dim wide"), cell(one.outcome, one.outcome === "answered" || one.outcome === "under way" || one.outcome.startsWith("from the cache") ? "wide" : "bad wide"),
  )), "none yet");
}

function draw() {
  byId("policy").textContent = "routes by " + found.policy;
  drawReplicas(); drawRoutes(); drawFacts(); drawEngines(); drawDecisions();
  const well = found.replicas.filter((one) => one.healthy && !one.draining).length;
  state(well ? "good" : "bad", well + " of " + found.replicas.length + " replicas take work");
}

async function problemOf(response) {
  try {
    return (await response.json()).error.message;
  } catch {
    return "the gateway says " + response.status;
  }
}

async function look() {
  clearTimeout(timer);
  if (looking || document.hidden) return;
  looking = true;
  try {
    const headers = key.value ? { Authorization: "Bearer " + key.value } : {};
    const response = await fetch("/admin/overview", { headers, signal: AbortSignal.timeout(8000) });
    if (response.ok) {
      before = found;
      found = { ...await response.json(), seen: performance.now() };
      draw();
    } else state("bad", response.status === 401 ? "an administrator's API key is needed" : await problemOf(response));
  } catch {
    state("bad", "the gateway does not answer");
  }
  looking = false;
  timer = setTimeout(look, EVERY);
}

document.addEventListener("visibilitychange", look);
look();
