// The page: takes what the server tells of a run, once a second, and draws it. Texts are set as text, never as markup.
"use strict";

const $ = (id) => document.getElementById(id);
const WORKER = ["pool", "name", "host", "pid", "state", "reason", "running", "function", "seconds", "usual", "slow", "job", "memory", "done", "lately", "others"];
const STATES = ["busy", "idle", "starting", "waiting", "leaving", "suspended", "stopped"];
const KEEP_SECONDS = 310, MOST_SPANS = 60000, FAILED_SECONDS = 60, ROWS = 100, CHIPS = 8, PAST_SECONDS = 15, GAP_SECONDS = 10, MOST_ENDED = 5;

const model = {
  run: "", runs: [], source: null, state: null, points: [], errors: [], spans: new Map(), spanCount: 0, clock: 0,
  silent: "", ended: false, how: "", follows: false, window: 120, sort: "name", descending: false, rows: ROWS, worker: null,
};

// -- texts

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const compact = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });
const collator = new Intl.Collator("en", { numeric: true });
const count = (n) => (n < 1e6 ? whole.format(n) : compact.format(n));
const plural = (n, one, many) => `${whole.format(n)} ${n === 1 ? one : many || one + "s"}`;

function span(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 0.001) return "0 ms";
  if (seconds < 1) return `${short.format(seconds * 1000)} ms`;
  if (seconds < 60) return `${seconds.toFixed(seconds < 10 ? 1 : 0)} s`;
  const total = Math.round(seconds), hours = Math.floor(total / 3600), minutes = Math.floor((total % 3600) / 60);
  if (hours >= 48) return `${whole.format(hours / 24)} days`;
  if (hours) return `${hours} h ${minutes} min`;
  return total % 60 && minutes < 10 ? `${minutes} min ${total % 60} s` : `${minutes} min`;
}

function bytes(n) {
  if (n === null || n === undefined) return "";
  for (const [unit, size] of [["GiB", 2 ** 30], ["MiB", 2 ** 20]]) if (n >= size) return `${short.format(n / size)} ${unit}`;
  return `${short.format(n / 1024)} KiB`;
}

const clock = (seconds) => new Date(seconds * 1000).toTimeString().slice(0, 8);
const ago = (seconds) => (seconds < 1 ? "now" : `${span(seconds)} ago`);

// -- elements

function h(tag, properties, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") made.className = value;
    else if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name === "data") Object.assign(made.dataset, value);
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((one) => one !== null && one !== undefined && one !== ""));
  return made;
}

function s(tag, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  if (text !== undefined) made.textContent = text;
  return made;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// changes what differs, so that what has the focus, or is about to be clicked, stays where it is
function patch(box, wanted) {
  while (box.childNodes.length > wanted.length) box.lastChild.remove();
  wanted.forEach((one, index) => {
    const old = box.childNodes[index];
    if (!old) box.append(one);
    else if (old.nodeType !== one.nodeType || old.nodeName !== one.nodeName || old.className !== one.className) old.replaceWith(one);
    else if (old.nodeType === Node.TEXT_NODE) {
      if (old.data !== one.data) old.data = one.data;
    } else {
      Object.assign(old.dataset, one.dataset);
      patch(old, [...one.childNodes]);
    }
  });
}

const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// each function keeps its colour for as long as the page is open
const functions = new Map();
// what was told of runs that have ended, so that they can be chosen again
const endedRuns = new Map();
function colorName(name) {
  if (!name) return "f7";
  if (!functions.has(name)) functions.set(name, `f${functions.size % 8}`);
  return functions.get(name);
}

// -- what is told

function connect(run, quiet) {
  if (model.source) model.source.close();
  const source = (model.source = new EventSource(`events?run=${encodeURIComponent(run)}${quiet ? "&quiet=1" : ""}`));
  source.addEventListener("history", (event) => {
    model.points = JSON.parse(event.data);
    model.spans.clear();
    model.spanCount = 0;
  });
  source.addEventListener("errors", (event) => {
    model.errors = JSON.parse(event.data).sort((a, b) => a.when - b.when);
  });
  source.addEventListener("spans", (event) => takeSpans(JSON.parse(event.data)));
  source.addEventListener("state", (event) => takeState(JSON.parse(event.data)));
  source.addEventListener("silent", (event) => {
    model.silent = JSON.parse(event.data).reason;
    live("silent", "no answer");
    draw();
    // it may have ended
    listRuns();
  });
  source.addEventListener("ended", (event) => {
    model.how = JSON.parse(event.data).how;
    end();
  });
  source.onerror = () => {
    live("silent", "disconnected");
    // a browser tries again by itself, but for what was refused
    if (source.readyState === EventSource.CLOSED) listRuns();
  };
}

function takeState(state) {
  state.workers = state.workers.map((row) => {
    const worker = {};
    WORKER.forEach((name, index) => (worker[name] = row[index]));
    worker.poolName = state.pools[worker.pool].name;
    worker.key = `${worker.poolName}/${worker.name}`;
    return worker;
  });
  state.workers.sort((a, b) => collator.compare(a.name, b.name));
  model.state = state;
  model.silent = "";
  model.ended = false;
  model.clock = Date.now() / 1000 - state.now;
  const last = model.points[model.points.length - 1];
  if (!last || last.t < state.point.t) model.points.push(state.point);
  if (model.points.length > 600) model.points.shift();
  live("live", "live");
  draw();
}

let isDue = false;
function takeSpans(spans) {
  // they come behind the state that they belong to
  if (!isDue && model.state) {
    isDue = true;
    requestAnimationFrame(() => {
      isDue = false;
      if (model.state && !$("main").hidden) drawTimeline();
    });
  }
  for (const [pool, worker, name, begin, end, tasks, failed] of spans) {
    const key = `${pool}/${worker}`;
    if (!model.spans.has(key)) model.spans.set(key, []);
    model.spans.get(key).push({ name, begin, end, tasks, failed });
    model.spanCount += 1;
  }
  const newest = spans.length ? spans[spans.length - 1][4] : 0;
  let oldest = newest - KEEP_SECONDS;
  if (model.spanCount > MOST_SPANS) oldest = newest - KEEP_SECONDS * (MOST_SPANS / model.spanCount);
  if (spans.length) {
    for (const [key, list] of model.spans) {
      let gone = 0;
      while (gone < list.length && list[gone].end < oldest) gone += 1;
      if (gone) list.splice(0, gone);
      model.spanCount -= gone;
      if (!list.length) model.spans.delete(key);
    }
  }
}

async function listRuns() {
  let answer;
  try {
    answer = await fetch("runs");
  } catch {
    // what has served its own page has gone with it
    if (model.ended) return;
    live("silent", "disconnected");
    if (!model.state) empty("The dashboard does not answer", "It has ended, or its host cannot be reached. Start it again with fiber dashboard.");
    return;
  }
  if (answer.status === 403) {
    empty("This address is not complete", "Open the whole address that was printed, with its token.");
    return;
  }
  model.runs = await answer.json();
  const isThere = model.runs.some((run) => run.id === model.run), newest = model.runs[0];
  if (model.state && !isThere) end();
  listOptions();
  if (isThere) {
    if (!model.source || model.source.readyState === EventSource.CLOSED) connect(model.run);
  } else if (!model.state || (model.follows && newest && newest.created > model.state.now)) {
    // a run that has ended stays until another one is chosen
    if (newest) choose(newest.id);
    else {
      model.run = "";
      empty("Nothing runs here yet", "Start a program that uses fiber on this host: it is shown here as soon as it has a pool or a process.");
    }
  }
}

function end() {
  if (model.source) model.source.close();
  const isNew = !model.ended;
  model.ended = true;
  if (!model.state) empty("The program has ended", model.how);
  live("waiting", "ended");
  if (isNew && model.state) {
    const { state, points, errors, spans, spanCount, how } = model;
    endedRuns.set(model.run, { state, points, errors, spans, spanCount, how });
    if (endedRuns.size > MOST_ENDED) endedRuns.delete(endedRuns.keys().next().value);
  }
  draw();
}

function listOptions() {
  const listed = model.runs.map((run) => [run.id, `${run.id}  ${run.program[0] || ""}`]);
  for (const [id, kept] of endedRuns) if (!model.runs.some((run) => run.id === id)) listed.push([id, `${id}  ${kept.state.run.program[0] || ""}  (ended)`]);
  if (model.ended || listed.length > 1) listed.push(["", "newest, and those that follow"]);
  const chosen = model.follows ? "" : model.run, text = JSON.stringify([listed, chosen]);
  $("runs-label").hidden = listed.length < 2;
  // a list that is open would close
  if ($("runs").dataset.text === text) return;
  $("runs").dataset.text = text;
  $("runs").replaceChildren(...listed.map(([id, said]) => h("option", { value: id, selected: id === chosen }, said)));
}

function pick(id) {
  model.follows = !id;
  if (!id) {
    const newest = model.runs[0];
    if (newest && newest.id !== model.run) choose(newest.id);
  } else if (id !== model.run) choose(id);
  listOptions();
}

function choose(run) {
  const kept = model.runs.some((one) => one.id === run) ? undefined : endedRuns.get(run);
  Object.assign(model, { run, state: null, points: [], errors: [], spans: new Map(), spanCount: 0, silent: "", ended: false, how: "" }, kept);
  functions.clear();
  pastAlerts.clear();
  closeWorker();
  if (kept) end();
  else connect(run);
  listOptions();
}

function live(state, text) {
  $("live").dataset.state = state;
  put($("live"), text);
}

function empty(head, text) {
  put($("empty-head"), head);
  put($("empty-text"), text);
  $("empty").hidden = false;
  $("main").hidden = true;
  live("waiting", "waiting");
}

// -- drawing

function draw() {
  if (document.hidden) return;
  const state = model.state;
  if (!state) {
    if (model.silent) empty("The program does not answer", model.silent);
    return;
  }
  $("empty").hidden = true;
  $("main").hidden = false;
  $("main").classList.toggle("stale", Boolean(model.silent) || model.ended);
  drawHead(state);
  drawAttention(state);
  drawTiles(state);
  drawPools(state);
  drawPlot($("rate-plot"), [{ field: "rate", color: "busy", name: "tasks/s", area: true }], (n) => `${short.format(n)}/s`);
  drawPlot(
    $("memory-plot"),
    [
      { field: "memory", color: "f1", name: "all workers", area: true },
      { field: "most", color: "f6", name: "largest worker" },
      { field: "own", color: "f2", name: "program" },
    ],
    bytes,
  );
  drawMap(state);
  drawTimeline();
  drawErrors(state);
  drawTable(state);
  drawOthers(state);
  if (model.worker) drawWorker();
}

function drawHead(state) {
  const run = state.run, words = run.program.map((word, index) => (index ? word : word.split("/").pop()));
  put($("program"), words.join(" ") || "fiber");
  const since = run.created ? `${model.ended ? "ran" : "runs"} for ${span(state.now - run.created)}` : "";
  put($("facts"), [`run ${run.id}`, run.backend, run.host && `on ${run.host}`, `pid ${run.pid}`, since].filter(Boolean).join("  ·  "));
  const failed = state.point.failed ? `(${state.point.failed} failed) ` : "";
  document.title = `${failed}${words[0] || run.id} – fiber`;
}

const isMissing = (worker) => worker.state === "waiting" || worker.state === "starting";
// one whose tasks take longer than the others', or whose task takes longer than usual
const lookOf = (worker) => (worker.state === "busy" && (worker.others || worker.slow) ? "slow" : worker.state);
const timesOf = (worker) => `${short.format(worker.lately / worker.others)}x`;
const slowness = (worker) => `${span(worker.lately)} a task lately, the others ${span(worker.others)} (${timesOf(worker)})`;

function alert(kind, sign, head, why, chips) {
  return h(
    "div",
    { class: "alert", data: { kind } },
    h("span", { class: "sign", "aria-hidden": "true" }, sign),
    h("p", {}, h("strong", {}, head), why ? h("span", { class: "why" }, `  ${why}`) : null),
    chips && chips.length ? h("div", { class: "chips" }, ...chips) : null,
  );
}

function workerChips(workers, say) {
  const chips = workers.slice(0, CHIPS).map((worker) => h("button", { class: "chip", type: "button", data: { key: worker.key } }, h("b", {}, worker.name), ` ${say(worker)}`));
  if (workers.length > CHIPS) chips.push(h("span", { class: "chip rest" }, `and ${whole.format(workers.length - CHIPS)} more`));
  return chips;
}

// alerts whose cause may come and go, each as it was last true
const pastAlerts = new Map();

function pastAlert(one) {
  const made = one.cloneNode(true);
  made.className = "alert past";
  put(made.querySelector("strong"), `Was: ${one.querySelector("strong").textContent}`);
  return made;
}

function drawAttention(state) {
  const found = [], others = model.runs.some((run) => run.id !== model.run);
  if (model.ended) found.push(alert("info", "■", `This run has ended${model.how ? ` with ${model.how}` : "."}`, `What is shown is the last that it told.${others ? " Choose another run above." : ""}`));
  else if (model.silent) found.push(alert("failed", "!", "The program does not answer.", model.silent));
  const lasting = (key, one) => {
    pastAlerts.set(key, { one, at: state.now, place: found.length });
    found.push(one);
  };
  for (const [number, pool] of state.pools.entries()) {
    const missing = pool.wanted - pool.ready;
    if (missing <= 0) continue;
    const mine = state.workers.filter((worker) => worker.pool === number && isMissing(worker));
    const waiting = mine.filter((worker) => worker.state === "waiting");
    // the same words of the platform are said once
    const reasons = [...new Set([pool.reason, ...waiting.map((worker) => worker.reason)].filter(Boolean))];
    if (waiting.length || pool.reason)
      lasting(`missing ${pool.name}`, alert("waiting", "…", `${pool.name}: ${missing} of ${plural(pool.wanted, "worker")} ${missing === 1 ? "waits" : "wait"} for a place.`, reasons.slice(0, 3).join("; ") || "The platform has not said why.", workerChips(waiting, (worker) => worker.host)));
    else lasting(`missing ${pool.name}`, alert("info", "↑", `${pool.name}: ${missing} of ${plural(pool.wanted, "worker")} are starting.`, "", missing < 4 ? workerChips(mine, () => "") : []));
  }
  const behind = state.workers.filter((worker) => worker.others).sort((a, b) => b.lately / b.others - a.lately / a.others);
  if (behind.length) {
    const head = behind.length === 1 ? `${behind[0].name} is slow:` : `${behind.length} workers are slow:`;
    const who = behind.length === 1 ? "" : `${behind[0].name} takes `;
    lasting("slow workers", alert("slow", "!", head, `${who}${slowness(behind[0])}.`, workerChips(behind, (worker) => `${worker.host} ${timesOf(worker)}`)));
  }
  const slow = state.workers.filter((worker) => worker.slow && !worker.others && worker.state === "busy").sort((a, b) => b.seconds - a.seconds);
  if (slow.length) {
    const first = slow[0];
    const usual = first.usual ? `, where ${span(first.usual)} is usual` : "";
    lasting("slow", alert("slow", "!", `${plural(slow.length, "slow task")}:`, `${first.name} has run ${first.function} for ${span(first.seconds)}${usual}.`, workerChips(slow, (worker) => `${worker.function} ${span(worker.seconds)}`)));
  }
  const halted = state.workers.filter((worker) => worker.state === "suspended" || worker.state === "stopped");
  if (halted.length) lasting("halted", alert("waiting", "‖", `${plural(halted.length, "worker is", "workers are")} halted.`, halted[0].reason || "A signal has stopped them: SIGCONT lets them go on.", workerChips(halted, (worker) => worker.state)));
  if (state.point.failed) {
    const last = model.errors[model.errors.length - 1];
    const why = last ? `The last, ${ago(state.now - last.when)}: ${last.function}[${last.item}]: ${last.error}` : "";
    found.push(alert("failed", "✕", `${plural(state.point.failed, "task")} failed.`, why, [h("button", { class: "chip errors", type: "button" }, "Show tracebacks")]));
  }
  if (state.point.retried) found.push(alert("info", "↻", `${plural(state.point.retried, "task")} ran again, since a worker was lost.`, ""));
  // what comes and goes does not move the page each time
  for (const [key, past] of model.ended ? [] : pastAlerts) {
    if (past.at === state.now) continue;
    if (state.now - past.at > PAST_SECONDS) pastAlerts.delete(key);
    else found.splice(past.place, 0, pastAlert(past.one));
  }
  if (!found.length) {
    const said = state.pools.length ? `All ${plural(state.point.wanted, "worker")} are up, nothing is slow, and no task has failed.` : "No pool has begun.";
    found.push(alert("good", "✓", said, state.point.waiting ? `${count(state.point.waiting)} tasks wait for a worker that is free.` : ""));
  }
  patch($("attention"), found);
}

function showErrors() {
  $("errors").scrollIntoView({ behavior: "smooth", block: "center" });
  const first = $("errors").querySelector("details");
  if (first) first.open = true;
}

const tiles = new Map();
function tile(name, value, note, kind) {
  if (!tiles.has(name)) {
    const made = h("div", { class: "tile" }, h("div", { class: "name" }, name), h("div", { class: "value" }), h("div", { class: "note" }));
    tiles.set(name, made);
    $("tiles").append(made);
  }
  const box = tiles.get(name);
  put(box.children[1], value);
  put(box.children[2], note);
  box.dataset.kind = kind || "";
}

function drawTiles(state) {
  const now = state.point;
  const states = {};
  for (const worker of state.workers) states[worker.state] = (states[worker.state] || 0) + 1;
  const told = ["busy", "idle", "starting", "waiting"].filter((name) => states[name]).map((name) => `${whole.format(states[name])} ${name}`);
  tile("Tasks a second", now.rate === null ? "–" : short.format(now.rate), "over the last second");
  tile("Workers", `${whole.format(now.ready)} of ${whole.format(now.wanted)}`, told.join(", "), now.ready < now.wanted ? "waiting" : "");
  tile("Waiting tasks", count(now.waiting), "no worker holds them");
  tile("Held by workers", count(now.running), "running, or next");
  tile("Done", count(now.done), now.retried ? `${count(now.retried)} ran again` : "");
  tile("Failed", count(now.failed), now.failed ? `${short.format((100 * now.failed) / Math.max(1, now.done))}% of those done` : "none", now.failed ? "failed" : "");
  tile("Memory", now.memory === null ? "–" : bytes(now.memory), now.memory === null ? "not told by these workers" : `largest ${bytes(now.most)}`);
}

const poolRows = new Map();
function drawPools(state) {
  const box = $("pools"), names = new Set(state.pools.map((pool) => pool.name));
  for (const [name, row] of poolRows) {
    if (names.has(name)) continue;
    row.remove();
    poolRows.delete(name);
  }
  for (const pool of state.pools) {
    let row = poolRows.get(pool.name);
    if (!row) {
      row = h(
        "div",
        { class: "pool" },
        h("div", { class: "who" }, h("div", {}), h("span", {})),
        h("div", {}, h("div", { class: "bar" }, h("i", { class: "done" }), h("i", { class: "failed" }), h("i", { class: "held" })), h("div", { class: "under" })),
        h("div", { class: "said" }, h("div", {}), h("span", {})),
      );
      poolRows.set(pool.name, row);
      box.append(row);
    }
    const [who, middle, said] = row.children, total = pool.done + pool.running + pool.waiting;
    put(who.children[0], pool.name);
    put(who.children[1], `${whole.format(pool.ready)} of ${plural(pool.wanted, "worker")}`);
    const share = (n) => `${total ? (100 * n) / total : 0}%`;
    const [done, failed, held] = middle.children[0].children;
    done.style.width = share(pool.done - pool.failed);
    failed.style.width = pool.failed ? `max(3px, ${share(pool.failed)})` : "0";
    held.style.width = share(pool.running);
    put(middle.children[1], `${count(pool.done)} of ${count(total)} done, ${count(pool.running)} held, ${count(pool.waiting)} wait${pool.failed ? `, ${count(pool.failed)} failed` : ""}`);
    const rate = meanRate(pool.name), left = total - pool.done;
    put(said.children[0], pool.rate === null ? "" : `${short.format(pool.rate)} tasks/s`);
    put(said.children[1], left && rate ? `about ${span(left / rate)} left` : left ? "" : "nothing left to do");
  }
  if (!state.pools.length && !box.children.length) box.append(h("p", { class: "none" }, "No pool or executor has begun."));
  else if (state.pools.length) box.querySelector(":scope > .none")?.remove();
}

// the mean of the last ten looks, for the time that is left
const rates = new Map();
function meanRate(name) {
  const pool = model.state.pools.find((one) => one.name === name), key = `${model.run}/${name}`;
  const list = rates.get(key) || [];
  if (pool.rate !== null && list.at !== model.state.now) {
    list.push(pool.rate);
    if (list.length > 10) list.shift();
    list.at = model.state.now;
    rates.set(key, list);
  }
  return list.length ? list.reduce((sum, one) => sum + one, 0) / list.length : 0;
}

// -- plots

function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  for (const step of [1, 1.5, 2, 3, 4, 5, 6, 8, 10]) if (value <= step * power) return step * power;
  return 10 * power;
}

function ceilingOfBytes(value) {
  let unit = 1024;
  while (value >= unit * 1024) unit *= 1024;
  return ceiling(value / unit) * unit;
}

// round seconds between the marks of an axis, of which there are so many at most
const stepOf = (seconds, most) => [5, 10, 15, 30, 60, 120, 180, 300].find((step) => seconds / step <= most) || 600;

// when nobody looked, as pairs of seconds: nothing was noted then
function gaps() {
  const points = model.points, found = [];
  if (points.length < 2) return found;
  const steps = points.slice(1).map((point, index) => point.t - points[index].t).sort((a, b) => a - b);
  const most = Math.max(GAP_SECONDS, 4 * steps[Math.floor(steps.length / 2)]);
  for (let index = 1; index < points.length; index += 1) if (points[index].t - points[index - 1].t > most) found.push([points[index - 1].t, points[index].t]);
  return found;
}

function drawPlot(box, lines, say) {
  const points = model.points, last = points[points.length - 1];
  const shown = lines.filter((line) => points.some((point) => point[line.field] !== null && point[line.field] !== undefined));
  if (!last || !shown.length) {
    if (!box.querySelector(".none")) box.replaceChildren(h("div", { class: "none" }, last && lines[0].field === "memory" ? "These workers do not tell their memory." : "Drawn from the second look on."));
    return;
  }
  const width = box.clientWidth, height = box.clientHeight, left = 62, right = 10, top = 20, bottom = 20;
  const seconds = Math.max(60, Math.min(600, last.t - points[0].t)), from = last.t - seconds;
  let most = 0;
  for (const point of points) if (point.t >= from - 2) for (const line of shown) most = Math.max(most, point[line.field] || 0);
  most = say === bytes ? ceilingOfBytes(most) : ceiling(most);
  const x = (t) => left + ((t - from) / seconds) * (width - left - right);
  const y = (value) => height - bottom - (value / most) * (height - top - bottom);
  const svg = s("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": shown.map((line) => `${line.name}: ${say(last[line.field] || 0)}`).join(", ") });
  for (const share of [0, 0.5, 1]) {
    svg.append(s("line", { class: "grid", x1: left, x2: width - right, y1: y(share * most), y2: y(share * most) }));
    svg.append(s("text", { x: left - 8, y: y(share * most) + 4, "text-anchor": "end" }, say(share * most)));
  }
  for (let before = 0, step = stepOf(seconds, 5); before <= seconds; before += step) {
    const at = x(last.t - before);
    svg.append(s("text", { x: at, y: height - 4, "text-anchor": !before ? "end" : at < left + 20 ? "start" : "middle" }, before ? `-${span(before)}` : "now"));
  }
  let at = left;
  const resumed = new Set(gaps().map(([, end]) => end));
  for (const line of shown) {
    // each ends where nobody looked
    const parts = [];
    let path = "", first = null, end = null;
    const close = () => {
      if (path) parts.push({ path, first, end });
      path = "";
      first = null;
    };
    for (const point of points) {
      const value = point[line.field];
      if (value === null || value === undefined || point.t < from - 2) continue;
      if (resumed.has(point.t)) close();
      const px = Math.max(left, x(point.t));
      path += `${path ? "L" : "M"}${px.toFixed(1)} ${y(value).toFixed(1)}`;
      if (first === null) first = px;
      end = px;
    }
    close();
    if (!parts.length) continue;
    for (const part of line.area ? parts : []) svg.append(s("path", { class: "area", fill: color(line.color), d: `${part.path}L${part.end.toFixed(1)} ${y(0)}L${part.first.toFixed(1)} ${y(0)}Z` }));
    svg.append(s("path", { class: "line", stroke: color(line.color), d: parts.map((part) => part.path).join("") }));
    svg.append(s("rect", { x: at, y: 2, width: 10, height: 10, rx: 3, fill: color(line.color) }));
    const label = s("text", { class: "name", x: at + 15, y: 11 }, width < 460 ? line.name : `${line.name} ${say(last[line.field] || 0)}`);
    svg.append(label);
    at += 30 + 6.4 * label.textContent.length;
  }
  box.replaceChildren(svg);
  box.plot = { points, shown, say, x, left, from, seconds, width, right };
}

function plotTip(event) {
  const box = event.currentTarget, plot = box.plot;
  if (!plot) return;
  const t = plot.from + ((event.offsetX - plot.left) / (plot.width - plot.left - plot.right)) * plot.seconds;
  let near = null;
  for (const point of plot.points) if (near === null || Math.abs(point.t - t) < Math.abs(near.t - t)) near = point;
  if (!near) return;
  tip(event, `${clock(near.t)}\n${plot.shown.map((line) => `${line.name}: ${near[line.field] === null ? "–" : plot.say(near[line.field])}`).join("\n")}`);
}

function tip(event, text) {
  const box = $("tip");
  put(box, text);
  box.hidden = !text;
  const width = box.offsetWidth, height = box.offsetHeight;
  box.style.left = `${Math.min(event.clientX + 14, innerWidth - width - 8)}px`;
  box.style.top = `${Math.min(event.clientY + 16, innerHeight - height - 8)}px`;
}

// -- workers by host

function failedLately(worker) {
  const list = model.spans.get(worker.key) || [], since = model.state.now - FAILED_SECONDS;
  for (let index = list.length - 1; index >= 0 && list[index].end > since; index -= 1) if (list[index].failed) return true;
  return false;
}

const describe = (worker) => `${worker.name} (${worker.poolName}): ${worker.state}${worker.others ? `, slow: ${slowness(worker)}` : worker.slow ? ", slow" : ""}\n${worker.function ? `${worker.function}, for ${span(worker.seconds)}` : worker.reason || worker.host}`;

const cells = new Map();
function drawMap(state) {
  const box = $("map"), few = state.workers.length <= 32, many = state.workers.length > 300;
  const hosts = new Map();
  for (const worker of state.workers) {
    const host = worker.host || "no host yet";
    if (!hosts.has(host)) hosts.set(host, []);
    hosts.get(host).push(worker);
  }
  const names = [...hosts.keys()].sort(collator.compare);
  box.className = !few && names.length > 3 ? "columns" : "";
  const present = new Set(state.workers.map((worker) => worker.key));
  for (const [key, cell] of cells) {
    if (present.has(key)) continue;
    cell.remove();
    cells.delete(key);
  }
  const rows = new Map([...box.children].map((row) => [row.dataset.host, row]));
  for (const [name, row] of rows) if (!hosts.has(name)) row.remove();
  names.forEach((name, position) => {
    let row = rows.get(name);
    if (!row) row = h("div", { class: "host", data: { host: name } }, h("p", {}, h("b", {}, name), h("span", {})), h("div", { class: "cells" }));
    if (box.children[position] !== row) box.insertBefore(row, box.children[position] || null);
    const mine = hosts.get(name), counts = {};
    for (const worker of mine) counts[lookOf(worker)] = (counts[lookOf(worker)] || 0) + 1;
    const memory = mine.reduce((sum, worker) => sum + (worker.memory || 0), 0);
    put(row.children[0].children[1], [plural(mine.length, "worker"), ...[...STATES, "slow"].filter((one) => counts[one]).map((one) => `${counts[one]} ${one}`), memory ? bytes(memory) : ""].filter(Boolean).join("  ·  "));
    const list = row.children[1];
    list.className = `cells${few ? " few" : many ? " many" : ""}`;
    mine.forEach((worker, index) => {
      let cell = cells.get(worker.key);
      if (!cell) {
        cell = h("button", { type: "button", data: { key: worker.key } }, h("b", {}, worker.name), h("span", {}), h("span", {}));
        cells.set(worker.key, cell);
      }
      if (list.children[index] !== cell) list.insertBefore(cell, list.children[index] || null);
      const look = `cell s-${lookOf(worker)}${failedLately(worker) ? " has-failed" : ""}`;
      if (cell.className !== look) cell.className = look;
      const label = `${worker.name}, ${lookOf(worker)}`;
      if (cell.getAttribute("aria-label") !== label) cell.setAttribute("aria-label", label);
      if (few) {
        put(cell.children[1], worker.function ? `${worker.function}${worker.others ? ` (slow, ${timesOf(worker)})` : worker.slow ? " (slow)" : ""}` : worker.state);
        put(cell.children[2], worker.function ? `for ${span(worker.seconds)}` : worker.reason);
      }
    });
  });
  if (!state.workers.length) box.replaceChildren(h("p", { class: "none" }, "No worker was started yet."));
  const there = new Set(state.workers.map(lookOf));
  legend($("legend"), [...STATES, "slow"].filter((one) => there.has(one)).map((one) => [one, `s-${one}`]).concat(state.workers.some(failedLately) ? [["failed a task in the last minute", "failed"]] : []));
}

function legend(box, entries) {
  const text = entries.map((entry) => entry.join()).join(";");
  if (box.dataset.text === text) return;
  box.dataset.text = text;
  box.replaceChildren(
    ...entries.map(([name, look]) => {
      const sign = h("i", { class: look.startsWith("s-") ? look : "" });
      if (!look.startsWith("s-")) sign.style.background = color(look);
      return h("span", {}, sign, name);
    }),
  );
}

// -- timeline

const AXIS = 20;
let LABEL = 150;

function hatch(g, look) {
  const tile = document.createElement("canvas"), size = 8;
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.strokeStyle = look;
  pen.beginPath();
  for (const shift of [-size, 0, size]) {
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
  }
  pen.stroke();
  return g.createPattern(tile, "repeat");
}

function timelineRows() {
  const workers = model.state.workers.filter((worker) => worker.state !== "waiting"), isSlow = (worker) => lookOf(worker) === "slow";
  // where all are in sight they stay in their places
  return workers.length <= 30 ? workers : [...workers.filter(isSlow), ...workers.filter((worker) => !isSlow(worker))];
}

function drawTimeline() {
  const box = $("timeline"), canvas = $("timeline-canvas"), rows = timelineRows();
  const high = rows.length <= 12 ? 24 : rows.length <= 30 ? 18 : 15;
  const all = rows.length * high + AXIS, width = box.clientWidth, height = Math.min(460, Math.max(60, all));
  box.style.height = `${height}px`;
  $("timeline-height").style.height = `${Math.max(0, all - height)}px`;
  LABEL = width < 600 ? 92 : 150;
  const scale = devicePixelRatio || 1;
  if (canvas.width !== Math.round(width * scale) || canvas.height !== Math.round(height * scale)) {
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.height = `${height}px`;
  }
  const g = canvas.getContext("2d");
  g.setTransform(scale, 0, 0, scale, 0, 0);
  g.clearRect(0, 0, width, height);
  // what was noted fills it until there is more
  let oldest = Infinity;
  for (const list of model.spans.values()) oldest = Math.min(oldest, list[0].begin);
  const now = model.state.now, seconds = Math.min(model.window, Math.max(30, now - oldest || 0)), from = now - seconds;
  const x = (t) => LABEL + ((t - from) / seconds) * (width - LABEL - 8);
  const palette = new Map(["f0", "f1", "f2", "f3", "f4", "f5", "f6", "f7", "failed", "slow", "grid", "faint", "text", "dim", "track", "card"].map((name) => [name, color(name)]));
  const fonts = getComputedStyle(document.body).fontFamily;
  const first = Math.floor(box.scrollTop / high), bottom = height - AXIS;
  const used = new Set(), unseen = gaps().filter(([, end]) => end > from), striped = hatch(g, palette.get("faint"));
  g.font = `12px ${fonts}`;
  g.textBaseline = "middle";
  for (let index = first; index < rows.length; index += 1) {
    const top = index * high - box.scrollTop;
    if (top > bottom) break;
    const worker = rows[index], gap = high > 16 ? 4 : 2;
    g.fillStyle = palette.get("track");
    g.globalAlpha = 0.55;
    g.fillRect(LABEL, top + gap / 2, width - LABEL - 8, high - gap);
    g.globalAlpha = 1;
    g.fillStyle = striped;
    for (const [begin, end] of unseen) g.fillRect(Math.max(LABEL, x(begin)), top + gap / 2, x(end) - Math.max(LABEL, x(begin)), high - gap);
    for (const one of model.spans.get(worker.key) || []) {
      if (one.end < from) continue;
      const left = Math.max(LABEL, x(one.begin)), right = Math.max(left + 1, x(one.end) - 0.6), name = colorName(one.name);
      used.add(one.name);
      g.fillStyle = palette.get(name);
      g.fillRect(left, top + gap / 2, right - left, high - gap);
      if (one.failed) {
        g.fillStyle = palette.get("failed");
        g.fillRect(Math.max(left, right - 3), top + gap / 2, 3, high - gap);
      }
    }
    if (worker.state === "busy" && worker.seconds > 0 && worker.function) {
      const left = Math.max(LABEL, x(now - worker.seconds)), right = x(now);
      used.add(worker.function);
      g.fillStyle = palette.get(colorName(worker.function));
      g.globalAlpha = 0.5;
      g.fillRect(left, top + gap / 2, Math.max(1, right - left), high - gap);
      g.globalAlpha = 1;
      if (worker.slow) {
        g.strokeStyle = palette.get("slow");
        g.lineWidth = 2;
        g.strokeRect(left + 1, top + gap / 2 + 1, Math.max(2, right - left - 2), high - gap - 2);
      }
    }
    g.fillStyle = palette.get(lookOf(worker) === "slow" ? "slow" : "text");
    g.fillText(worker.name, 2, top + high / 2, LABEL - 12);
  }
  g.fillStyle = palette.get("card");
  g.fillRect(0, bottom, width, AXIS);
  g.fillStyle = palette.get("faint");
  g.font = `11px ${fonts}`;
  g.textAlign = "center";
  const step = stepOf(seconds, width < 600 ? 3 : 6);
  for (let t = Math.ceil(from / step) * step; t <= now; t += step) {
    if (x(t) - LABEL < 24 || width - x(t) < 28) continue;
    g.fillText(clock(t), x(t), bottom + AXIS / 2 + 1);
  }
  g.textAlign = "left";
  const said = [...functions.entries()].filter(([name]) => name && used.has(name)).slice(0, 8);
  if (used.has("")) said.push(["sent before this page was open", colorName("")]);
  if (unseen.length) said.push(["striped: nobody looked", "faint"]);
  legend($("functions"), said);
  put($("timeline-note"), model.state.missing ? `${whole.format(model.state.missing)} more were too many to be shown` : "the last tasks of each worker, noted while this page is open");
  box.rows = { rows, high, from, width, seconds };
}

function timelineTip(event) {
  const box = $("timeline"), told = box.rows;
  if (!told) return;
  const edge = box.getBoundingClientRect(), worker = told.rows[Math.floor((event.clientY - edge.top + box.scrollTop) / told.high)];
  if (!worker) return tip(event, "");
  const t = told.from + ((event.clientX - edge.left - LABEL) / (told.width - LABEL - 8)) * told.seconds;
  const now = model.state.now;
  let text = describe(worker);
  for (const one of model.spans.get(worker.key) || [])
    if (one.begin <= t && t <= one.end) {
      text = `${worker.name}: ${one.name || "tasks sent before this page was open"}\n${plural(one.tasks, "task")} in ${span(one.end - one.begin)}, until ${clock(one.end)}${one.failed ? `\n${one.failed} failed` : ""}`;
    }
  if (worker.seconds > 0 && t >= now - worker.seconds) text = describe(worker);
  tip(event, text);
}

// -- failed tasks

const shownErrors = new Map();
function drawErrors(state) {
  const box = $("errors");
  if (!model.errors.length) {
    shownErrors.clear();
    if (!box.querySelector(".none")) box.replaceChildren(h("p", { class: "none" }, state.point.failed ? "Those that failed are not remembered any more." : "None."));
    return;
  }
  box.querySelector(":scope > .none")?.remove();
  const keys = new Set();
  for (const error of model.errors) {
    const key = `${error.pool}/${error.function}/${error.item}/${error.when}`;
    keys.add(key);
    if (!shownErrors.has(key)) {
      const body = h("details", {}, h("summary", {}, h("span", { class: "when" }), h("span", { class: "task", title: `${error.function}[${error.item}]` }, `${error.function}[${error.item}]`), h("span", { class: "error", title: error.error }, error.error.split("\n")[0]), h("span", { class: "by" }, error.worker || "")));
      body.append(h("pre", { tabindex: "0" }, error.traceback || error.error));
      if (error.replay) body.append(h("p", { class: "hint" }, "Run it again in a terminal: ", h("code", {}, `fiber replay --pdb ${error.replay}`)));
      else body.append(h("p", { class: "hint" }, "Its arguments were not kept, so it cannot be run again. Start the program with ", h("code", {}, "FIBER_KEEP_FAILED=1"), " to keep those of tasks that fail."));
      shownErrors.set(key, body);
      box.prepend(body);
    }
    put(shownErrors.get(key).querySelector(".when"), ago(state.now - error.when));
  }
  for (const [key, body] of shownErrors) {
    if (keys.has(key)) continue;
    body.remove();
    shownErrors.delete(key);
  }
}

// -- table

const COLUMNS = [
  ["name", "Worker", (w) => w.name],
  ["state", "State", (w) => lookOf(w)],
  ["host", "Host", (w) => w.host],
  ["pid", "Pid", (w) => (w.pid === null ? "" : String(w.pid)), true],
  ["function", "Function", (w) => w.function],
  ["seconds", "For", (w) => (w.function ? span(w.seconds) : ""), true],
  ["usual", "Usual", (w) => (w.function ? span(w.usual) : ""), true],
  ["lately", "Lately", (w) => (w.others ? `${span(w.lately)}, ${timesOf(w)}` : span(w.lately)), true],
  ["done", "Done", (w) => (w.done ? count(w.done) : ""), true],
  ["running", "Held", (w) => (w.running ? whole.format(w.running) : ""), true],
  ["memory", "Memory", (w) => bytes(w.memory), true],
  ["reason", "Why", (w) => w.reason],
];

function drawTable(state) {
  const table = $("workers"), body = table.tBodies[0];
  if (!table.tHead.rows.length) {
    table.tHead.append(
      h("tr", {}, ...COLUMNS.map(([field, title, , number]) => h("th", { class: number ? "number" : "", data: { field } }, h("button", { type: "button", onclick: () => sortBy(field, number) }, title)))),
    );
    $("state").append(h("option", { value: "" }, "all states"), ...[...STATES, "slow"].map((one) => h("option", { value: one }, one)));
  }
  for (const cell of table.tHead.rows[0].cells) {
    if (cell.dataset.field === model.sort) cell.setAttribute("aria-sort", model.descending ? "descending" : "ascending");
    else cell.removeAttribute("aria-sort");
  }
  const word = $("filter").value.trim().toLowerCase(), wanted = $("state").value;
  const chosen = state.workers.filter((worker) => (!wanted || lookOf(worker) === wanted || worker.state === wanted) && (!word || `${worker.name} ${worker.host} ${worker.function} ${worker.poolName}`.toLowerCase().includes(word)));
  const field = model.sort, sign = model.descending ? -1 : 1;
  if (field !== "name" || model.descending) {
    const value = field === "state" ? lookOf : (worker) => worker[field];
    chosen.sort((a, b) => {
      const first = value(a), second = value(b);
      if (typeof first === "number" || typeof second === "number") return sign * ((first ?? -1) - (second ?? -1));
      return sign * collator.compare(first || "", second || "");
    });
  }
  const rows = chosen.slice(0, model.rows);
  while (body.rows.length > rows.length) body.deleteRow(-1);
  rows.forEach((worker, index) => {
    let row = body.rows[index];
    if (!row) {
      row = body.insertRow();
      for (const [name, , , number] of COLUMNS) {
        const cell = row.insertCell();
        if (number) cell.className = "number";
        if (name === "state") cell.append(h("span", { class: "dot" }), h("span", {}));
        if (name === "reason") cell.className = "reason";
      }
    }
    if (row.dataset.key !== worker.key) row.dataset.key = worker.key;
    COLUMNS.forEach(([name, , say], column) => {
      const cell = row.cells[column];
      if (name === "state") {
        const look = `dot s-${lookOf(worker)}`;
        if (cell.children[0].className !== look) cell.children[0].className = look;
        put(cell.children[1], say(worker));
      } else put(cell, say(worker));
      if (name === "seconds") cell.className = `number${worker.slow ? " slow" : ""}`;
      if (name === "lately") cell.className = `number${worker.others ? " slow" : ""}`;
    });
  });
  const rest = chosen.length - rows.length, more = $("more");
  if (rest > 0) {
    if (!more.children.length) more.replaceChildren(h("span", {}), h("button", { type: "button", onclick: () => ((model.rows += 200), draw()) }, "Show more"));
    put(more.children[0], `${plural(rest, "more worker")}.  `);
  } else if (!chosen.length) more.replaceChildren(state.workers.length ? "No worker is like that." : "There are no workers.");
  else more.replaceChildren();
}

function sortBy(field, number) {
  model.descending = model.sort === field ? !model.descending : Boolean(number);
  model.sort = field;
  draw();
}

function drawOthers(state) {
  const lines = [
    ...state.processes.map((one) => `${one.name}: ${one.state}${one.host ? ` on ${one.host}` : ""}${one.pid ? `, pid ${one.pid}` : ""}${one.reason ? `: ${one.reason}` : ""}`),
    ...state.queues.map((one) => `queue ${one.number}: ${plural(one.length, "item")}`),
  ];
  $("others").hidden = !lines.length;
  const box = $("others-list");
  while (box.children.length > lines.length) box.lastChild.remove();
  lines.slice(0, 200).forEach((text, index) => {
    if (!box.children[index]) box.append(h("p", {}));
    put(box.children[index], text);
  });
}

// -- one worker

let logTimer = 0;

function openWorker(key) {
  model.worker = key;
  $("worker").hidden = false;
  put($("log"), "");
  put($("log-note"), "");
  drawWorker();
  clearInterval(logTimer);
  readLog();
  logTimer = setInterval(readLog, 2000);
}

function closeWorker() {
  model.worker = null;
  clearInterval(logTimer);
  $("worker").hidden = true;
}

function workerOf(key) {
  return model.state && model.state.workers.find((worker) => worker.key === key);
}

function drawWorker() {
  const worker = workerOf(model.worker);
  put($("worker-name"), worker ? worker.name : model.worker.split("/").pop());
  if (!worker) {
    $("worker-facts").replaceChildren(h("dt", {}, "State"), h("dd", {}, "it has ended"));
    return;
  }
  const list = model.spans.get(worker.key) || [];
  const tasks = list.reduce((sum, one) => sum + one.tasks, 0), failed = list.reduce((sum, one) => sum + one.failed, 0);
  const facts = [
    ["State", `${worker.state}${lookOf(worker) === "slow" ? ", slow" : ""}`],
    ["Speed", worker.others ? slowness(worker) : worker.lately ? `${span(worker.lately)} a task lately` : ""],
    ["Done", worker.done ? plural(worker.done, "task") : ""],
    ["Why", worker.reason],
    ["Runs", worker.function && `${worker.function}, for ${span(worker.seconds)}${worker.usual ? `, where ${span(worker.usual)} is usual` : ""}`],
    ["Holds", worker.running ? plural(worker.running, "task") : ""],
    ["Lately", tasks ? `${plural(tasks, "task")}${failed ? `, ${whole.format(failed)} of them failed` : ""}` : ""],
    ["Memory", bytes(worker.memory)],
    ["Place", [worker.host, worker.pid && `pid ${worker.pid}`, worker.job && `job ${worker.job}`].filter(Boolean).join(", ")],
    ["Pool", worker.poolName],
  ].filter(([, text]) => text);
  const box = $("worker-facts");
  const flat = facts.flat();
  if (box.children.length === flat.length && [...box.children].every((one, index) => one.textContent === flat[index])) return;
  box.replaceChildren(...facts.flatMap(([name, text]) => [h("dt", {}, name), h("dd", {}, text)]));
}

async function readLog() {
  const worker = workerOf(model.worker);
  if (!worker || document.hidden) return;
  if (!worker.job) {
    put($("log-note"), "it has no job yet");
    return;
  }
  const key = model.worker;
  let answer;
  try {
    const got = await fetch(`log?run=${encodeURIComponent(model.run)}&job=${encodeURIComponent(worker.job)}`);
    answer = got.ok ? await got.json() : { error: "the run has ended" };
  } catch {
    answer = { error: "the dashboard does not answer" };
  }
  if (model.worker !== key) return;
  if (answer.error) {
    put($("log-note"), answer.error);
    return;
  }
  put($("log-note"), answer.lines.length ? `the last ${plural(answer.lines.length, "line")}` : "it has written nothing");
  const box = $("log"), atEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - 30;
  put(box, answer.lines.join("\n"));
  box.hidden = !answer.lines.length;
  if (atEnd) box.scrollTop = box.scrollHeight;
}

// -- begin

$("runs").addEventListener("change", (event) => pick(event.target.value));
$("filter").addEventListener("input", draw);
$("state").addEventListener("change", draw);
$("close").addEventListener("click", closeWorker);
addEventListener("keydown", (event) => event.key === "Escape" && closeWorker());
$("windows").addEventListener("click", (event) => {
  const seconds = Number(event.target.dataset.seconds);
  if (!seconds) return;
  model.window = seconds;
  for (const button of $("windows").children) button.setAttribute("aria-pressed", String(button === event.target));
  draw();
});
$("workers").tBodies[0].addEventListener("click", (event) => {
  const row = event.target.closest("tr");
  if (row) openWorker(row.dataset.key);
});
$("attention").addEventListener("click", (event) => {
  const chip = event.target.closest("button");
  if (chip && chip.classList.contains("errors")) showErrors();
  else if (chip) openWorker(chip.dataset.key);
});
$("map").addEventListener("click", (event) => {
  const cell = event.target.closest(".cell");
  if (cell) openWorker(cell.dataset.key);
});
$("map").addEventListener("mousemove", (event) => {
  const cell = event.target.closest(".cell"), worker = cell && workerOf(cell.dataset.key);
  tip(event, worker ? describe(worker) : "");
});
$("timeline").addEventListener("mousemove", timelineTip);
$("timeline").addEventListener("scroll", () => model.state && drawTimeline());
$("timeline").addEventListener("click", (event) => {
  const box = $("timeline"), told = box.rows;
  const worker = told && told.rows[Math.floor((event.clientY - box.getBoundingClientRect().top + box.scrollTop) / told.high)];
  if (worker) openWorker(worker.key);
});
for (const id of ["rate-plot", "memory-plot"]) $(id).addEventListener("mousemove", plotTip);
for (const id of ["rate-plot", "memory-plot", "map", "timeline"]) $(id).addEventListener("mouseleave", (event) => tip(event, ""));
addEventListener("resize", draw);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
document.addEventListener("visibilitychange", () => {
  // nothing is asked of the program for a page that nobody sees, which is still to know how the run ends
  if (document.hidden) {
    if (model.run && !model.ended) connect(model.run, true);
  } else if (model.run && !model.ended) connect(model.run);
  else listRuns();
});
// the token is in a cookie from now on
history.replaceState(null, "", location.pathname);
listRuns();
setInterval(() => !document.hidden && listRuns(), 3000);
