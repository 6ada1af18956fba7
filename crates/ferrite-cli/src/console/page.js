"use strict";
// The console of a Ferrite server. Names come from clients and file systems: they are only ever set as text.

const PERIOD_MS = 2000;
const POINTS = 60;
const byId = (id) => document.getElementById(id);
let token = sessionStorage.getItem("token") || "";
let before = null;
let rates = [];
let shown = { pool: -1, path: [] };

const make = (tag, text, cls) => {
  const element = document.createElement(tag);
  if (text !== undefined) element.textContent = text;
  if (cls) element.className = cls;
  return element;
};

const bytes = (count) => {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let unit = 0;
  while (count >= 1024 && unit < units.length - 1) { count /= 1024; unit += 1; }
  return `${count >= 100 || unit === 0 ? Math.round(count) : count.toFixed(1)} ${units[unit]}`;
};
const number = (count) => count >= 100 ? Math.round(count).toLocaleString("en") : count.toFixed(1);
const micros = (us) => us >= 1e6 ? `${number(us / 1e6)} s` : us >= 1e3 ? `${number(us / 1e3)} ms` : `${number(us)} µs`;
const span = (ms) => {
  const seconds = Math.floor(ms / 1000);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const at = parts.findIndex(([unit]) => seconds >= unit);
  return (at < 0 ? parts.slice(3) : parts.slice(at, at + 2))
    .map(([unit, name], i) => `${Math.floor((i ? seconds % parts[at][0] : seconds) / unit)} ${name}`).join(" ");
};

const table = (head, rows) => {
  const element = make("table");
  const line = element.createTHead().insertRow();
  for (const name of head) { const cell = make("th", name); cell.scope = "col"; line.append(cell); }
  const body = element.createTBody();
  for (const row of rows) {
    const line = body.insertRow();
    for (const value of row) {
      const cell = line.insertCell();
      if (value instanceof Node) cell.append(value); else { cell.textContent = value; cell.title = value; }
    }
  }
  return element;
};

const state = (text, cls) => { const element = byId("state"); element.textContent = text; element.className = cls; };

const get = async (path) => {
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const reply = await fetch(path, { headers, signal: AbortSignal.timeout(8000) });
  if (reply.status === 401) { byId("ask").hidden = false; throw new Error("a token is needed"); }
  if (!reply.ok) throw new Error((await reply.text()).trim());
  return reply.json();
};

// The bound, in microseconds, that this part of the requests did not exceed.
const quantile = (latency, part, log2) => {
  const all = latency.reduce((sum, count) => sum + count, 0);
  let below = 0;
  for (let i = 0; all > 0 && i < latency.length; i += 1) {
    below += latency[i];
    if (below >= all * part) return 2 ** (log2 + i) / 1e3;
  }
  return 0;
};

const pools = (all) => all.map((pool, index) => {
  const element = make("div", undefined, "pool");
  element.append(make("span", pool.path, "path"));
  const look = make("button", "space");
  look.type = "button";
  look.onclick = () => space(index, []);
  element.append(look);
  if (pool.capacity_bytes) {
    const bar = make("progress");
    bar.max = pool.capacity_bytes;
    bar.value = pool.used_bytes;
    bar.setAttribute("aria-label", `Space in use of ${pool.path}`);
    element.append(bar);
    const left = pool.available_bytes / pool.capacity_bytes;
    element.append(make("span", `${bytes(pool.used_bytes)} of ${bytes(pool.capacity_bytes)} in use, ` +
      `${pool.inodes_free.toLocaleString("en")} inodes free`, left < 0.05 ? "warn" : "quiet"));
  }
  const well = !pool.read_only && !pool.damage;
  const health = pool.damage ? `${pool.damage} damaged structures` : pool.read_only ? "read-only" : "healthy";
  element.append(make("span", health, well ? "good" : pool.damage ? "bad" : "warn"));
  return element;
});

const since = (now, then) => then === undefined || now < then ? now : now - then;

const operations = (status, old, seconds) => {
  const rows = [];
  let total = 0;
  for (const one of status.exports) {
    const earlier = old && old.exports.find((other) => other.name === one.name);
    for (const operation of one.operations) {
      const then = earlier && earlier.operations.find((other) => other.name === operation.name);
      const of = (field) => since(operation[field], then && then[field]);
      const latency = operation.latency.map((count, i) => since(count, then && then.latency[i]));
      const requests = of("requests");
      total += requests / seconds;
      if (requests === 0) continue;
      rows.push([one.name || "(default)", operation.name, number(requests / seconds), of("errors"),
        `${bytes(of("received_bytes") / seconds)}/s`, `${bytes(of("sent_bytes") / seconds)}/s`,
        micros(quantile(latency, 0.5, status.shortest_log2)), micros(quantile(latency, 0.99, status.shortest_log2))]);
    }
  }
  rows.sort((a, b) => Number(b[2].replace(/,/g, "")) - Number(a[2].replace(/,/g, "")));
  return [rows, total];
};

const clients = (status, old, seconds) => status.exports.flatMap((one) => {
  const earlier = old && old.exports.find((other) => other.name === one.name);
  const rows = one.clients.map((client) => {
    const then = earlier && earlier.clients.find((other) => other.session === client.session);
    const of = (field) => since(client[field], then && then[field]);
    return [client.connected ? client.address : "(gone)", one.name || "(default)", number(of("requests") / seconds),
      `${bytes(of("received_bytes") / seconds)}/s`, `${bytes(of("sent_bytes") / seconds)}/s`, client.files,
      client.waiting, span(client.idle_ms)];
  });
  if (one.sessions > rows.length) {
    const rest = (one.sessions - rows.length).toLocaleString("en");
    rows.push([`and ${rest} more`, one.name || "(default)", "", "", "", "", "", ""]);
  }
  return rows;
});

const chart = (rate) => {
  rates.push(rate);
  rates = rates.slice(-POINTS);
  const most = Math.max(1, ...rates);
  const line = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
  const x = (i) => 600 - (rates.length - 1 - i) * 600 / (POINTS - 1);
  line.setAttribute("points", rates.map((value, i) => `${x(i)},${115 - value / most * 110}`).join(" "));
  byId("chart").replaceChildren(line);
  byId("chart-caption").textContent =
    `${number(rate)} requests a second now; the top of the chart is ${number(most)}, its width two minutes`;
};

const fromHex = (hex) => (hex.match(/../g) || []).map((pair) => `%${pair}`).join("");

const space = async (pool, path) => {
  shown = { pool, path };
  const target = byId("space");
  const trail = byId("space-path");
  trail.replaceChildren();
  ["/", ...path.map((part) => part.name)].forEach((name, depth) => {
    const step = make("button", name);
    step.type = "button";
    step.onclick = () => space(pool, path.slice(0, depth));
    trail.append(step, " ");
  });
  target.replaceChildren(make("p", "counting", "quiet"));
  try {
    const where = `/${path.map((part) => fromHex(part.name_hex)).join("/")}`;
    const answer = await get(`space.json?pool=${pool}&path=${where}`);
    if (shown.path !== path) return;
    const rows = answer.children.map((child) => {
      let name = child.name;
      if (child.is_directory) {
        name = make("button", child.name);
        name.type = "button";
        name.onclick = () => space(pool, [...path, child]);
      }
      return [name, bytes(child.bytes), child.files.toLocaleString("en")];
    });
    if (answer.hidden) rows.push([`and ${answer.hidden.toLocaleString("en")} smaller ones`, "", ""]);
    target.replaceChildren(table(["name", "space", "files"], rows));
    if (!answer.is_complete) target.append(make("p", "There is more than could be counted in two seconds.", "warn"));
    if (rows.length === 0) target.replaceChildren(make("p", "empty", "quiet"));
  } catch (error) {
    target.replaceChildren(make("p", error.message, "bad"));
  }
};

const show = (status, at) => {
  const isFirst = !before || status.uptime_ms < before.status.uptime_ms;
  const old = isFirst ? null : before.status;
  const seconds = isFirst ? Math.max(1, status.uptime_ms / 1e3) : Math.max(0.1, (at - before.at) / 1e3);
  before = { status, at };
  byId("ask").hidden = true;
  byId("main").hidden = false;
  byId("server").textContent = `version ${status.version}, up ${span(status.uptime_ms)}, ` +
    `${status.connections.toLocaleString("en")} connections, longest turn ${number(status.longest_turn_ms)} ms`;
  byId("pools").replaceChildren(...pools(status.pools));
  const [rows, total] = operations(status, old, seconds);
  if (!isFirst) chart(total);
  const head = ["export", "operation", "1/s", "errors", "in", "out", "half below", "99 % below"];
  byId("operations").replaceChildren(rows.length ? table(head, rows) : make("p", "no requests", "quiet"));
  const all = clients(status, old, seconds);
  byId("clients").replaceChildren(all.length
    ? table(["client", "export", "1/s", "in", "out", "files", "waits", "idle"], all) : make("p", "none", "quiet"));
  byId("errors").replaceChildren(...status.errors.reverse().map((line) => make("li", line)));
};

const turn = async () => {
  try {
    const status = await get("status.json");
    show(status, performance.now());
    state("live", "good");
  } catch (error) {
    const isAsked = !byId("ask").hidden;
    state(isAsked ? error.message : `no answer: ${error.message}`, "bad");
    if (isAsked) { byId("main").hidden = true; return; }
  }
  setTimeout(turn, PERIOD_MS);
};

byId("ask").onsubmit = (event) => {
  event.preventDefault();
  token = byId("token").value.trim();
  sessionStorage.setItem("token", token);
  byId("ask").hidden = true;
  turn();
};
turn();
