// The page of a node for operators. It asks the node for /status again and again, and draws the answers. The history
// is kept here and not in the node, for ten minutes. The page sets only text, never HTML, and asks no other address.

const POLL_MS = 2000;
const POLL_HIDDEN_MS = 10_000;
const TIMEOUT_MS = 4000;
// Without an answer for this long, the page says so. Browsers delay the timers of hidden tabs by up to a minute.
const STALE_MS = 6000;
const STALE_HIDDEN_MS = 90_000;
// A member answers five pings a second. It counts as silent after this time.
const SILENT_MS = 1500;
const WINDOW_MS = 600_000;
// Warnings about events look back this far.
const RECENT_MS = 300_000;
const SAMPLES_MAX = 400;
const TOKEN = "epicepoch-token";
const MS_PER_DAY = 86_400_000;

const state = {
  token: "", document: null, failure: null, receivedAt: 0, skewMs: 0, samples: [], build: "", cursor: null,
  told: new Set(), visibleAt: 0,
};
let timer = 0;
// The number of the last poll. Answers to earlier ones come too late.
let turns = 0;

const $ = (id) => document.getElementById(id);

// Sets a text only if it differs, so that screen readers say only changes.
function set(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function make(tag, className, ...children) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...children);
  return element;
}

function draw(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Keeps one child of `parent` for each item, in order. Existing children stay, and with them the focus.
function keyed(parent, items, key, create, update) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, at) => {
    let child = old.get(String(key(item)));
    old.delete(String(key(item)));
    if (!child) {
      child = create(item);
      child.dataset.key = key(item);
    }
    if (parent.children[at] !== child) parent.insertBefore(child, parent.children[at] ?? null);
    update(child, item);
  });
  for (const child of old.values()) child.remove();
}

const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
function count(value) {
  if (value >= 1e6) return `${digits(value / 1e6)} M`;
  if (value >= 1e4) return `${digits(value / 1e3)} k`;
  return value >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}
function ms(value) {
  if (value === 0) return "0 ms";
  if (Math.abs(value) < 1) return `${(value * 1000).toFixed(0)} µs`;
  const [size, sign] = [Math.abs(value), value < 0 ? "-" : ""];
  return sign + (size < 1000 ? `${digits(size)} ms` : size < 600_000 ? `${digits(size / 1000)} s` : lasting(size));
}
const signed = (value) => (value > 0 ? "+" : "") + ms(value).replace("-", "−");
const percent = (value) => `${value >= 10 ? value.toFixed(0) : value.toFixed(1)} %`;
function lasting(value) {
  const s = Math.floor(value / 1000);
  const [d, h, m] = [Math.floor(s / 86_400), Math.floor(s / 3600) % 24, Math.floor(s / 60) % 60];
  if (d) return `${d} d ${h} h`;
  if (h) return `${h} h ${m} min`;
  return m ? `${m} min ${s % 60} s` : `${s} s`;
}
const wallMs = (it) => Number(it.wallNs.slice(0, -6));
function utc(unixMs) {
  const text = new Date(unixMs).toISOString();
  const isOld = Math.abs(wallMs(state.document) - unixMs) > MS_PER_DAY / 2;
  return `${isOld ? `${text.slice(0, 10)} ` : ""}${text.slice(11, 19)} UTC`;
}

// The duration that `share` of those counted since `was` did not exceed, ms. `null` if there are none.
function quantile(now, was, bounds, share) {
  const fresh = now.map((value, at) => value - was[at]);
  const total = fresh.reduce((sum, value) => sum + value, 0);
  if (total <= 0) return null;
  let rank = share * total;
  for (let at = 0; at < bounds.length; at += 1) {
    if (rank <= fresh[at]) {
      const low = at ? bounds[at - 1] : 0;
      return low + ((bounds[at] - low) * rank) / fresh[at];
    }
    rank -= fresh[at];
  }
  return bounds[bounds.length - 1];
}

// Refusals that cost a client its timestamps. NOT_LEADER does not: it names the leader.
const FAILED = ["NO_QUORUM", "NO_LEADER", "OVERLOADED", "SHUTTING_DOWN", "NOT_READY", "INTERNAL"];

// What a poll adds to the history. `was` is the document before, of the same process.
function sampled(now, was, at) {
  const values = {};
  for (const it of now.members) {
    if (it.answerAgeMs === null || it.answerAgeMs > SILENT_MS) continue;
    values[`trip${it.nodeID}`] = it.usualMs;
    values[`clock${it.nodeID}`] = it.offsetMs;
  }
  const sample = { at, wallMs: wallMs(now), values, events: {} };
  const seconds = was ? (now.uptimeMs - was.uptimeMs) / 1000 : 0;
  if (seconds <= 0) return sample;
  const grown = (name) => now.counters[name] - was.counters[name];
  const refused = (code) => (now.refusals[code] ?? 0) - (was.refusals[code] ?? 0);
  const time = (name, share) => quantile(now.latencies[name], was.latencies[name], now.boundsMs, share);
  Object.assign(values, {
    timestamps: grown("timestamps") / seconds,
    answered: grown("answered") / seconds,
    failed: FAILED.reduce((sum, code) => sum + refused(code), 0) / seconds,
    confirm50: time("confirm", 0.5), confirm99: time("confirm", 0.99), waiting99: time("waiting", 0.99),
    disk50: time("diskWrite", 0.5), disk99: time("diskWrite", 0.99),
    cpu: grown("cpuMs") / seconds / 10,
  });
  const stalls = now.latencies.hiccup.reduce((sum, value, it) =>
    sum + ((now.boundsMs[it - 1] ?? 0) >= 50 ? value - was.latencies.hiccup[it] : 0), 0);
  sample.events = {
    stalls, overloaded: refused("OVERLOADED"), headless: refused("NO_QUORUM") + refused("NO_LEADER"),
    missed: grown("reservationDeadlinesMissed"), changes: grown("leaderChanges"), denied: grown("denied"),
    rounds: grown("roundsFailed"), accepts: grown("acceptFailures"), closed: grown("connectionsRefused"),
  };
  return sample;
}

function keep(sample) {
  const { samples } = state;
  samples.push(sample);
  while (samples.length > SAMPLES_MAX || sample.at - samples[0].at > WINDOW_MS) samples.shift();
}

function remember(now) {
  const was = state.document;
  const at = performance.now();
  const isSame = was && was.boot === now.boot;
  keep({ ...sampled(now, isSame ? was : null, at), isRestart: was && !isSame });
  state.document = now;
  state.receivedAt = at;
  state.skewMs = Date.now() - wallMs(now);
  state.build ||= `${now.version} ${now.commit}`;
}

// How often an event happened lately.
function lately(name) {
  const from = performance.now() - RECENT_MS;
  return state.samples.reduce((sum, it) => sum + (it.at >= from ? it.events[name] ?? 0 : 0), 0);
}

const isOther = (now, it) => it.nodeID !== now.nodeID;
const isSilent = (it) => it.answerAgeMs === null || it.answerAgeMs > SILENT_MS;
const silence = (it) => (it.answerAgeMs === null ? "has not answered since this node started"
  : `has not answered for ${lasting(it.answerAgeMs)}`);
// Other pages can be linked only if this one is on the port that members tell each other.
const pageOf = (it) => (state.document.addr.endsWith(`:${location.port}`) ? `${location.protocol}//${it.addr}/ui` : null);

// What needs attention. It is urgent ("now") if clients are affected or soon will be. docs/alerts.md has the same
// advice.
function warnings(now, ageMs) {
  const found = [];
  const add = (id, urgency, title, advice) => found.push({ id, urgency, title, advice });
  const others = now.members.filter((it) => isOther(now, it));
  if (isStale()) {
    add("stale", "now", `Node ${now.nodeID} has not answered this page for ${lasting(ageMs)}`,
      `See whether it runs, and read the end of its log. ${state.failure ?? ""}`);
  }
  if (now.leaving === "removed") {
    add("leaving", "soon", "This node was removed from the cluster", "It ends by itself. Close this page.");
  } else if (now.leaving === "stopping") {
    add("leaving", "soon", "This node is stopping", "Look at the page of another node.");
  }
  if (!now.leader) {
    add("leader", "now", "This node knows no leader", "See which nodes run and reach each other: a majority has to. " +
      "Look for “no link” and “a peer is refused” in the logs.");
  } else if (now.leads && !now.hasGrant && now.leaderForMs > POLL_MS) {
    add("grant", "now", "The leader may not answer yet", "It has no range of epochs: a majority of disks must write " +
      "one. Look at the disks and links of the nodes.");
  }
  if (now.tickAgeMs > 1000) {
    add("tick", "now", `The consensus thread has been stuck for ${lasting(now.tickAgeMs)}`,
      "Look at the processors and the disk of this machine.");
  }
  if (now.impaired) {
    add("impaired", "now", "The disk or the confirm rounds of this node are stuck",
      "Look at the disk of this machine, and at the end of the log.");
  }
  if (now.leader && !now.quorumReached && now.leaving === "no") {
    add("quorum", "now", now.leads ? "The leader does not reach a majority" : "This node does not hear its leader",
      "Check the network between the nodes, at the port of RAFT_ADDR.");
  }
  const isVoter = (it) => it.role === "voter" || it.role === "leader";
  const voters = now.members.filter(isVoter);
  const there = voters.filter((it) => !isOther(now, it) || !isSilent(it)).length;
  const spare = there - (Math.floor(voters.length / 2) + 1);
  for (const it of others.filter(isSilent)) {
    const left = spare < 0 ? "Too few nodes answer." : spare ? "" : "Until then, the loss of one more stops the service.";
    add(`silent${it.nodeID}`, isVoter(it) && spare <= 0 ? "now" : "soon", `Node ${it.nodeID} ${silence(it)}`,
      `Start it, or repair the network to ${it.raftAddr}. If its disk is gone, replace it. ${isVoter(it) ? left : ""}`);
  }
  if (now.status === "outvoted") {
    add("clock", "now", "The clock of this node is wrong, and the clocks of the others are used",
      "Set the clock of this machine right (chronyc tracking). Order is not in danger.");
  } else if (now.status === "jumped") {
    add("clock", "now", "The clock of this node jumped, and too few nodes answer to confirm it",
      "Compare it with other clocks. If it is wrong, set it right; if it is right, restart this node.");
  }
  const answering = others.filter((it) => !isSilent(it));
  for (const { nodeID, offsetMs } of answering.filter((it) => Math.abs(it.offsetMs) > now.settings.CLOCK_OFFSET_MAX_MS)) {
    add(`apart${nodeID}`, "soon", `The clock of node ${nodeID} differs from that of this node by ${signed(offsetMs)}`,
      "epicepoch clock names the clock that is wrong. Set it right.");
  }
  if (now.leadMs > 60_000 + Number(now.settings.RESERVATION_MS)) {
    add("ceiling", "soon", `The ceiling is ${lasting(now.leadMs)} ahead of the clock`,
      "The service continues, but epochs stand still until the clock has caught up.");
  }
  const election = Number(now.nodeSettings.ELECTION_TIMEOUT_MS);
  for (const { nodeID, usualMs } of answering.filter((it) => it.usualMs * 8 > election)) {
    add(`trip${nodeID}`, "soon", `The round trip to node ${nodeID}, ${ms(usualMs)}, is too long for ` +
      `ELECTION_TIMEOUT_MS=${election}`, "Run epicepoch tune, and set what it advises.");
  }
  if (now.confirmLinks < now.confirmLinksMax && !others.some((it) => isVoter(it) && isSilent(it))) {
    add("links", "soon", `${now.confirmLinks} of ${now.confirmLinksMax} confirm links are connected`,
      "Check the logs of the other nodes, and firewalls that cut idle connections.");
  }
  const last = state.samples.at(-1)?.values ?? {};
  const event = (name, urgency, above, title, advice) => {
    const times = lately(name);
    if (times > above) add(name, urgency, `${title}: ${count(times)} in 5 minutes`, advice);
  };
  event("overloaded", "now", 0, "Requests refused, because the node has too many",
    "Ask for several timestamps in one request, or add processors.");
  event("headless", "now", 0, "Requests refused, because there was no leader or no quorum",
    "See which nodes run and reach each other: a majority has to.");
  event("changes", "now", 3, "Changes of the leader",
    "“handing leadership over” and “leadership given up” in the logs say why each time.");
  event("accepts", "now", 0, "Connections not accepted, because descriptors are missing", "Raise LimitNOFILE=.");
  event("closed", "soon", 0, "Connections closed at a limit",
    "Raise CONNECTIONS_MAX or ADDRESS_CONNECTIONS_MAX, or let clients share connections.");
  event("missed", "soon", 0, "Reservations that took longer than half a window",
    "Look at the leader's disk (chart “Disk write”) and its links (epicepoch tune).");
  event("rounds", "soon", 0, "Confirm rounds that failed",
    "Check the load of the other machines, and the network between the nodes.");
  event("stalls", "soon", 2, "Stalls of this machine of 50 ms or more",
    "Run less other work here, or add processors.");
  event("denied", "soon", 0, "Callers refused, because a right is missing", "The log names the address.");
  if (last.disk99 > 100) {
    add("disk", "soon", `A write to the disk takes ${ms(last.disk99)}`, "Move other programs off this disk.");
  }
  for (const it of now.certificates.filter((it) => it.daysLeft < 30)) {
    add(it.setting, it.daysLeft < 3 ? "now" : "soon", it.daysLeft < 0 ? `The certificate of ${it.setting} has expired`
      : `The certificate of ${it.setting} expires in ${it.daysLeft} days`, "Put a new pair in its place.");
  }
  const versions = new Set([now.version, ...others.flatMap((it) => it.version ?? [])]);
  if (versions.size > 1) {
    add("versions", "soon", `Nodes run different versions: ${[...versions].join(", ")}`, "Finish the upgrade.");
  }
  if (`${now.version} ${now.commit}` !== state.build) {
    add("build", "soon", "This node runs another version than the page", "Reload this page.");
  }
  return found.sort((a, b) => (a.urgency === b.urgency ? 0 : a.urgency === "now" ? -1 : 1));
}

const LEVELS = { ok: "✓ All is well", soon: "▲ Look at it soon", now: "✕ Act now" };

function drawHero(now, found, ageMs) {
  const level = found[0]?.urgency ?? "ok";
  const className = { ok: "ok", soon: "warn", now: "bad" }[level];
  const isGone = isStale();
  const leader = now.leader ? `Node ${now.leader.nodeID} leads` : "No leader";
  const headline = isGone ? `Node ${now.nodeID} does not answer` : leader;
  const since = wallMs(now) - now.leaderForMs;
  // A node that has started later cannot know since when.
  const isLonger = !now.leads && now.uptimeMs - now.leaderForMs < 3000;
  const answering = now.members.filter((it) => !isOther(now, it) || !isSilent(it)).length;
  const rate = state.samples.at(-1)?.values.timestamps;
  const parts = [
    `${now.leader ? "Since" : "Lost at"} ${utc(since)}${isLonger ? " or longer" : ""}, for ` +
      lasting(now.leaderForMs + (isGone ? 0 : ageMs)),
    `term ${now.term}`, `${answering} of ${now.members.length} nodes answer`,
  ];
  if (now.leads && rate !== undefined) parts.push(`${count(rate)} timestamps/s`);
  $("hero").className = `card ${className}`;
  set($("verdict"), LEVELS[level]);
  set($("headline"), headline);
  set($("subline"), isGone ? `This is what it said at ${utc(wallMs(now))}, ${lasting(ageMs)} ago: ${leader}. ` +
    parts.slice(0, 3).join(" · ") : parts.join(" · "));
  document.title = `${LEVELS[level][0]} ${headline} – ${now.clusterName}`;
}

function drawWarnings(found) {
  $("attention").hidden = found.length === 0;
  const fresh = found.filter((it) => !state.told.has(it.id));
  // The titles of others change every second, such as how long a node is silent. They are told once.
  if (fresh.length) set($("said"), fresh.map((it) => it.title).join(". "));
  state.told = new Set(found.map((it) => it.id));
  keyed($("warnings"), found, (it) => it.id, () => make("li", "", make("span"), make("b"), make("p")), (li, it) => {
    li.className = it.urgency;
    set(li.children[0], it.urgency === "now" ? "✕ Now" : "▲ Soon");
    set(li.children[1], it.title);
    set(li.children[2], it.advice);
  });
}

function health(now, it) {
  if (!isOther(now, it)) return now.ready ? ["ok", "● ready", ""] : ["bad", "✕ not ready", ""];
  if (it.answerAgeMs === null) return ["bad", "✕ silent", "no answer since this node started"];
  if (isSilent(it)) return ["bad", "✕ silent", `for ${lasting(it.answerAgeMs)}`];
  return it.heard === false ? ["warn", "▲ answers", "not heard by the leader"] : ["ok", "● answers", ""];
}

function drawNodes(now) {
  set($("nodes-note"), `as node ${now.nodeID} sees them${now.leads ? "" : "; only the leader knows who is behind"}`);
  const create = () => {
    const row = make("tr", "", make("th"));
    row.firstChild.scope = "row";
    for (const of of ["Role", "Health", "Behind", "Round trip", "Clock", "Version"]) {
      const cell = make("td", ["Behind", "Round trip", "Clock"].includes(of) ? "n" : "");
      cell.dataset.of = of;
      row.append(cell);
    }
    return row;
  };
  keyed($("rows"), now.members, (it) => it.nodeID, create, (row, it) => {
    const isSelf = !isOther(now, it);
    const gone = !isSelf && isSilent(it);
    row.className = gone ? "gone" : "";
    const [head, role, how, behind, trip, clock, version] = row.children;
    const href = isSelf ? null : pageOf(it);
    const key = `${href} ${it.addr}`;
    if (head.dataset.made !== key) {
      head.dataset.made = key;
      const name = href ? make("a", "", `Node ${it.nodeID}`) : `Node ${it.nodeID}`;
      if (href) Object.assign(name, { href, rel: "noreferrer" });
      head.replaceChildren(name, isSelf ? make("span", "tag", "this node") : "", make("small", "", it.addr));
    }
    set(role, it.role);
    const [level, text, detail] = health(now, it);
    how.className = `state ${level}`;
    if (how.childElementCount === 0) how.append(make("span"), make("small"));
    set(how.children[0], text);
    set(how.children[1], detail);
    set(behind, it.behind === null || isSelf ? "–" : count(it.behind));
    set(trip, gone || it.usualMs === null ? "–" : ms(it.usualMs));
    set(clock, isSelf ? now.status : gone || it.offsetMs === null ? "–" : signed(it.offsetMs));
    set(version, (isSelf ? now.version : it.version) ?? "–");
  });
}

const one = (key, label = "") => () => [[key, label]];
// The peers with the largest values, three at most.
const peers = (key) => (now) => {
  const size = (it) => Math.abs(state.samples.at(-1)?.values[key + it.nodeID] ?? 0);
  const others = now.members.filter((it) => isOther(now, it)).sort((a, b) => size(b) - size(a)).slice(0, 3);
  return others.sort((a, b) => a.nodeID - b.nodeID).map((it) => [key + it.nodeID, `node ${it.nodeID}`]);
};
const CHARTS = [
  ["Timestamps per second", count, one("timestamps")],
  ["Requests per second", count, () => [["answered", "answered"], ["failed", "failed"]]],
  ["Confirm round", ms, () => [["confirm50", "median"], ["confirm99", "p99"]]],
  ["Wait before the round, p99", ms, one("waiting99")],
  ["Disk write", ms, () => [["disk50", "median"], ["disk99", "p99"]]],
  ["Processor, of one core", percent, one("cpu")],
  ["Round trip to", ms, peers("trip")],
  ["Clock ahead of this node", signed, peers("clock"), true],
].map(([title, format, series, isSigned = false]) => ({ title, format, series, isSigned }));

const [WIDTH, HEIGHT] = [600, 58];

// The end of a chart's scale: a round number.
function scale(max) {
  if (max <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(max));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((top) => top >= max * 0.999);
}

// How much time the charts show: whole minutes, from two to ten.
function spanMs() {
  const kept = performance.now() - (state.samples[0]?.at ?? 0);
  return Math.min(WINDOW_MS, Math.max(2, Math.ceil(kept / 60_000)) * 60_000);
}

function drawCharts(now) {
  const x = (at) => (WIDTH * (1 - (performance.now() - at) / spanMs())).toFixed(1);
  const cursor = state.samples.find((it) => it.at === state.cursor) ?? null;
  if (!cursor) state.cursor = null;
  const shown = cursor ?? state.samples.at(-1);
  set($("span"), `Last ${Math.round(spanMs() / 60_000)} minutes`);
  set($("cursor-time"), cursor ? `at ${utc(cursor.wallMs)}` : "");
  const said = [];
  keyed($("charts"), CHARTS, (it) => it.title, (it) => {
    const svg = draw("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img" });
    const caption = make("figcaption", "", make("span", "", it.title), make("span", "range"), make("div", "keys"));
    return make("figure", "card", caption, svg);
  }, (figure, { title, format, series, isSigned }) => {
    const lines = series(now);
    const [caption, svg] = figure.children;
    const [, range, keys] = caption.children;
    const values = lines.flatMap(([key]) => state.samples.map((it) => it.values[key]).filter(Number.isFinite));
    const top = scale(Math.max(0, ...values.map(Math.abs)));
    const y = (value) => (isSigned ? HEIGHT / 2 - (value / top) * (HEIGHT / 2 - 1)
      : HEIGHT - 1 - (value / top) * (HEIGHT - 3)).toFixed(1);
    const parts = [draw("path", { class: "grid", d: `M0 ${y(0)}H${WIDTH}` })];
    const texts = [];
    lines.forEach(([key, label], at) => {
      let [path, area, before] = ["", "", false];
      for (const it of state.samples) {
        const value = it.values[key];
        const isLinked = before;
        before = Number.isFinite(value);
        if (!before) continue;
        path += isLinked ? `L${x(it.at)} ${y(value)}` : `M${x(it.at)} ${y(value)}h.1`;
        area += isLinked ? `L${x(it.at)} ${y(value)}` : `${area && `V${y(0)}Z`}M${x(it.at)} ${y(0)}V${y(value)}`;
      }
      if (at === 0 && lines.length === 1 && area) parts.push(draw("path", { class: "area", d: `${area}V${y(0)}Z` }));
      parts.push(draw("path", { class: `s${at % 3}`, d: path }));
      const value = shown?.values[key];
      texts.push([label, Number.isFinite(value) ? format(value) : "–"]);
    });
    for (const it of state.samples.filter((it) => it.isRestart)) {
      parts.push(draw("path", { class: "restart", d: `M${x(it.at)} 0V${HEIGHT}` }));
    }
    if (cursor) parts.push(draw("path", { class: "cursor", d: `M${x(cursor.at)} 0V${HEIGHT}` }));
    svg.replaceChildren(...parts);
    const text = texts.map(([label, value]) => `${label} ${value}`.trim()).join(", ");
    const [low, high] = [Math.min(...values), Math.max(...values)];
    svg.setAttribute("aria-label", `${title}: ${text}${values.length ? `; from ${format(low)} to ${format(high)} in ` +
      "the time shown" : ""}`);
    set(range, values.length ? (isSigned ? "±" : "") + format(top).replace("+", "").replace(/\.0+ /, " ") : "");
    caption.className = lines.length === 1 && !lines[0][1] ? "alone" : "";
    keyed(keys, texts, ([label]) => label, ([label]) => make("span", "key", make("i", "", `${label} `),
      make("span")), (span, [, value]) => set(span.children[1], value));
    [...keys.children].forEach((span, at) => { span.className = `key s${at % 3}`; });
    said.push(`${title}: ${text}`);
  });
  if (cursor) set($("said"), `${utc(cursor.wallMs)}. ${said.join(". ")}`);
}

function drawList(id, pairs) {
  const flat = pairs.flatMap(([name, value]) => [["dt", name, name], ["dd", `${name}=`, String(value)]]);
  keyed($(id), flat, (it) => it[1] + it[0], (it) => make(it[0]), (element, it) => set(element, it[0] === "dt" ? it[1] : it[2] || "–"));
}

function drawLists(now) {
  drawList("settings", Object.entries(now.settings));
  drawList("node-settings", Object.entries(now.nodeSettings));
  drawList("identity", [
    ["Version", `${now.version}, commit ${now.commit.slice(0, 12)}`], ["Build", `${now.profile}, ${now.target}`],
    ["Started", utc(wallMs(now) - now.uptimeMs)], ["Cluster", now.cluster], ["History", now.history],
    ["Ceiling ahead of the clock", ms(now.leadMs)],
    ["Confirm links", `${now.confirmLinks} of ${now.confirmLinksMax}`],
    ["Client connections", count(now.counters.connectionsOpen)],
    ["Waiting requests", count(now.counters.waitingRequests)],
  ]);
  const skew = Math.abs(state.skewMs) < 3000 ? "" : ` The clock of this browser is ${lasting(Math.abs(state.skewMs))} ` +
    `${state.skewMs > 0 ? "ahead of" : "behind"} it.`;
  set($("foot"), `Times are UTC, by the clock of node ${now.nodeID}.${skew} Rates and latencies are those of ` +
    `node ${now.nodeID}; percentiles are estimates.`);
}

function isStale() {
  const at = performance.now();
  return document.hidden ? at - state.receivedAt > STALE_HIDDEN_MS
    : at - Math.max(state.receivedAt, state.visibleAt) > STALE_MS;
}

// How old the data is. This part changes every second, and is not announced.
function drawAge() {
  const ageMs = performance.now() - state.receivedAt;
  $("age").className = `pill ${state.document && !isStale() ? "ok" : "bad"}`;
  set($("age"), !state.document ? "No answer yet" : ageMs < 3000 ? "Live" : `Updated ${lasting(ageMs)} ago`);
  $("data").classList.toggle("stale", Boolean(state.document) && isStale());
  return ageMs;
}

function drawAll() {
  const now = state.document;
  const ageMs = drawAge();
  $("data").hidden = false;
  $("data").classList.toggle("empty", !now);
  $("forget").hidden = !state.token;
  if (!now) {
    $("hero").className = "card bad";
    set($("verdict"), LEVELS.now);
    set($("headline"), "This node gives no answer");
    set($("subline"), state.failure ?? "");
    return;
  }
  const found = warnings(now, ageMs);
  set($("name"), now.clusterName);
  set($("seen"), `EpicEpoch, seen from node ${now.nodeID} at ${now.addr}`);
  drawHero(now, found, ageMs);
  drawWarnings(found);
  drawNodes(now);
  drawCharts(now);
  drawLists(now);
}

function keepToken(token) {
  state.token = token;
  try {
    if (token) sessionStorage.setItem(TOKEN, token);
    else sessionStorage.removeItem(TOKEN);
  } catch {
    // A browser without storage keeps the token until the page is left.
  }
}

// Shows the form for a token. The page asks nothing more until there is one.
function askForToken(why) {
  keepToken("");
  clearTimeout(timer);
  turns += 1;
  state.document = null;
  state.samples = [];
  $("data").hidden = true;
  $("forget").hidden = true;
  $("entry").hidden = false;
  $("entry-why").className = why ? "bad" : "";
  set($("entry-why"), why || "Its operators need a token to see the cluster.");
  set($("age"), "Waits for a token");
  $("age").className = "pill";
  document.title = "EpicEpoch";
  $("token").focus();
}

async function poll() {
  const { token } = state;
  turns += 1;
  const turn = turns;
  const isLate = () => turn !== turns;
  try {
    const answer = await fetch("/status", {
      headers: token ? { authorization: `Bearer ${token}` } : {},
      cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    const body = await answer.text();
    if (isLate()) return;
    if (answer.status === 401) {
      askForToken(token && "This node does not accept the token, or not any more.");
      return;
    }
    if (!answer.ok) {
      throw new Error(`It refuses with ${answer.status} ${answer.headers.get("epicepoch-error") ?? ""}: ${body}`);
    }
    remember(JSON.parse(body));
    state.failure = null;
    $("entry").hidden = true;
  } catch (error) {
    if (isLate()) return;
    const at = performance.now();
    if (state.document) {
      keep({ at, wallMs: wallMs(state.document) + at - state.receivedAt, values: {}, events: {} });
    }
    const isOfNetwork = error.name === "TypeError" || error.name === "TimeoutError";
    state.failure = isOfNetwork ? "It cannot be reached from this browser." : error.message;
  }
  drawAll();
  clearTimeout(timer);
  timer = setTimeout(poll, document.hidden ? POLL_HIDDEN_MS : POLL_MS);
}

// Moves the cursor to the sample next to a time, or by steps.
function moveCursor(at) {
  state.cursor = at;
  if (state.document) drawCharts(state.document);
}

$("charts").addEventListener("pointermove", (event) => {
  const plot = event.target.closest("figure")?.querySelector("svg").getBoundingClientRect();
  if (!plot || state.samples.length === 0) return;
  const at = performance.now() - spanMs() * (1 - (event.clientX - plot.left) / plot.width);
  const distance = (it) => Math.abs(it.at - at);
  moveCursor(state.samples.reduce((best, it) => (distance(it) < distance(best) ? it : best)).at);
});
$("charts").addEventListener("pointerleave", () => moveCursor(null));
$("charts").addEventListener("blur", () => moveCursor(null));
$("charts").addEventListener("keydown", (event) => {
  const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
  if (event.key === "Escape") moveCursor(null);
  if (!step || state.samples.length === 0) return;
  event.preventDefault();
  const last = state.samples.length - 1;
  const found = state.samples.findIndex((it) => it.at === state.cursor);
  const to = Math.min(last, Math.max(0, (found < 0 ? last : found) + step));
  moveCursor(state.samples[to].at);
});
$("entry-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const token = $("token").value.trim();
  $("token").value = "";
  // Tokens have these characters; a header could not carry others.
  if (!/^[\x21-\x7e]{16,256}$/.test(token)) {
    askForToken("A token has 16 to 256 visible ASCII characters.");
    return;
  }
  keepToken(token);
  poll();
});
$("forget").addEventListener("click", () => {
  askForToken("");
});
document.addEventListener("visibilitychange", () => {
  state.visibleAt = performance.now();
  if (!document.hidden && $("entry").hidden) poll();
});
setInterval(() => {
  if (!$("entry").hidden) return;
  drawAge();
  if (state.document && isStale()) drawAll();
}, 1000);

try {
  state.token = sessionStorage.getItem(TOKEN) ?? "";
} catch {
  // The form asks for it again.
}
poll();
