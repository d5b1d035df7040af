// The page of a node for operators. It asks the node for /status again and again, and draws the answers. The history
// is kept here and not in the node, for ten minutes. The page sets only text, never HTML, and asks no other address.

const POLL_MS = 2000;
const POLL_HIDDEN_MS = 10_000;
const TIMEOUT_MS = 4000;
// Older data is called old, and its node is called gone if it does not answer.
const STALE_MS = 6000;
const STALE_HIDDEN_MS = 20_000;
// A warning is urgent after this time, because an ordinary change of the leader is shorter.
const STEADY_MS = 5000;
// Counts are not compared across a longer gap, such as a computer's sleep.
const GAP_MAX_S = 90;
// A member answers five pings a second. It counts as silent after this time.
const SILENT_MS = 1500;
const WINDOW_MS = 600_000;
// Members usually lack fewer log entries.
const BEHIND_MAX = 16;
const TOKEN = "epicepoch-token";

const state = {
  token: "", document: null, failure: null, receivedAt: 0, samples: [], cursor: null,
  // Since when each warning is shown, by its id.
  told: new Map(),
};
let timer = 0;
// The number of the last poll. Answers to earlier ones come too late.
let turns = 0;

let [elapsedMs, ranMs, wallNowMs] = [0, performance.now(), Date.now()];

// Time of this page. In some browsers performance.now() stands still while the computer sleeps.
function clock() {
  const [ran, wall] = [performance.now(), Date.now()];
  const [run, passed] = [ran - ranMs, wall - wallNowMs];
  elapsedMs += passed > run + 1000 ? passed : run;
  [ranMs, wallNowMs] = [ran, wall];
  return elapsedMs;
}

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

// Keeps one child of `parent` for each item, in order. Children stay, and with them the focus.
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
  if (value === Infinity) return `> ${ms(state.document.boundsMs.at(-1))}`;
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
const utc = (unixMs) => `${new Date(unixMs).toISOString().slice(0, 19).replace("T", " ")} UTC`;

const sum = (values) => values.reduce((all, value) => all + value, 0);

// The duration that `share` of those counted since `was` did not exceed, ms.
function quantile(now, was, bounds, share) {
  const fresh = now.map((value, at) => value - was[at]);
  const total = sum(fresh);
  if (total <= 0) return null;
  let rank = share * total;
  for (let at = 0; at < bounds.length; at += 1) {
    if (rank <= fresh[at]) {
      const low = at ? bounds[at - 1] : 0;
      return low + ((bounds[at] - low) * rank) / fresh[at];
    }
    rank -= fresh[at];
  }
  return Infinity;
}

// Refusals that cost a client its timestamps. NOT_LEADER does not: it names the leader.
const FAILED = ["NO_QUORUM", "NO_LEADER", "OVERLOADED", "SHUTTING_DOWN", "NOT_READY", "INTERNAL"];

// What a poll adds to the history. `was` is the document before, of the same process.
function sampled(now, was, at) {
  const values = {};
  for (const it of now.members) {
    if (isSilent(it)) continue;
    values[`trip${it.nodeID}`] = it.usualMs;
    values[`clock${it.nodeID}`] = it.offsetMs;
  }
  const sample = { at, wallMs: wallMs(now), values, events: {} };
  const seconds = was ? (now.uptimeMs - was.uptimeMs) / 1000 : 0;
  if (seconds <= 0 || seconds > GAP_MAX_S) return sample;
  const grown = (name) => now.counters[name] - was.counters[name];
  const refused = (code) => (now.refusals[code] ?? 0) - (was.refusals[code] ?? 0);
  const time = (name, share) => quantile(now.latencies[name], was.latencies[name], now.boundsMs, share);
  Object.assign(values, {
    timestamps: grown("timestamps") / seconds,
    answered: grown("answered") / seconds,
    failed: sum(FAILED.map(refused)) / seconds,
    confirm50: time("confirm", 0.5), confirm99: time("confirm", 0.99), waiting99: time("waiting", 0.99),
    disk50: time("diskWrite", 0.5), disk99: time("diskWrite", 0.99),
    cpu: grown("cpuMs") / seconds / 10,
  });
  const stalls = now.latencies.hiccup.map((value, it) =>
    (now.boundsMs[it - 1] >= 50 ? value - was.latencies.hiccup[it] : 0));
  sample.events = {
    stalls: sum(stalls), overloaded: refused("OVERLOADED"), missed: grown("reservationDeadlinesMissed"),
    headlessMs: refused("NO_QUORUM") + refused("NO_LEADER") ? seconds * 1000 : 0,
    changes: grown("leaderChanges"), denied: grown("denied"), dropped: grown("raftMessagesDropped"),
    rounds: grown("roundsTimedOut"), crowded: grown("connectionsRefusedByAddress"),
    full: grown("acceptFailures") + grown("connectionsRefused") - grown("connectionsRefusedByAddress"),
  };
  return sample;
}

function keep(sample) {
  const { samples } = state;
  samples.push(sample);
  while (sample.at - samples[0].at > WINDOW_MS) samples.shift();
}

function remember(now) {
  const was = state.document;
  const at = clock();
  // The consensus thread receives the members' answers. While it is stuck, their ages say nothing.
  for (const it of now.members) {
    if (it.answerAgeMs !== null) it.answerAgeMs = Math.max(0, it.answerAgeMs - now.tickAgeMs);
  }
  // Another version of the node may have another page.
  if (was?.nodeID === now.nodeID && was.commit !== now.commit) location.reload();
  const isSame = was?.boot === now.boot;
  keep({ ...sampled(now, isSame ? was : null, at), isRestart: was && !isSame });
  state.document = now;
  state.receivedAt = at;
}

// How often an event happened in the last minutes.
function lately(name, minutes) {
  const from = clock() - minutes * 60_000;
  return sum(state.samples.map((it) => (it.at >= from ? it.events[name] ?? 0 : 0)));
}

const isOther = (now, it) => it.nodeID !== now.nodeID;
const silence = (it) => (it.answerAgeMs === null ? "since this node started" : `for ${lasting(it.answerAgeMs)}`);
const isSilent = (it) => it.answerAgeMs === null || it.answerAgeMs > SILENT_MS;
// The page of another node, if this one is on the port that members tell each other. Nothing but host:port is linked.
const pageOf = (it) => (state.document.addr.endsWith(`:${location.port}`)
  && /^([\w.-]+|\[[\da-f:.]+\]):\d{1,5}$/i.test(it.addr) ? `${location.protocol}//${it.addr}/ui` : null);

const MAJORITY = "See which nodes run and reach each other: a majority has to. The logs say “no link” and why.";
const INTERVALS = "Look at its clock source (chronyc tracking) if that is why.";
const LINKS = "Look at the leader's disk and its links (epicepoch tune).";
// Events: more than a number of them in some minutes need attention.
const EVENTS = [
  ["overloaded", "now", 0, 1, "Requests refused, because the node has too many",
    "Ask for several timestamps in one request, or add processors."],
  ["changes", "now", 3, 10, "Changes of the leader",
    "“handing leadership over” and “leadership given up” in the logs say why each time."],
  ["full", "now", 0, 5, "Connections refused at a limit", "Raise CONNECTIONS_MAX and LimitNOFILE=."],
  ["crowded", "soon", 0, 5, "Connections refused, because an address has too many", "Raise ADDRESS_CONNECTIONS_MAX."],
  ["missed", "soon", 0, 5, "Reservations that took longer than half a window",
    LINKS],
  ["rounds", "soon", 0, 5, "Confirm rounds without an answer in time",
    "Check the load of the other machines, and the network between the nodes."],
  ["dropped", "soon", 300, 5, "Messages to other nodes dropped", "The network or a node is slow."],
  ["stalls", "soon", 2, 5, "Stalls of this machine of 50 ms or more", "Run less other work here, or add processors."],
  ["denied", "soon", 0, 5, "Callers refused, because a right is missing", "The log names the address."],
];

// What needs attention, with the severities of docs/alerts.md: "now" if clients are affected or soon will be.
function warnings(now, ageMs) {
  const found = [];
  const add = (id, severity, title, advice) => {
    const since = state.told.get(id) ?? (state.samples.length > 1 ? clock() : -Infinity);
    const isSteady = id === "stale" || clock() - since >= STEADY_MS;
    found.push({ id, urgency: isSteady ? severity : "soon", title, advice, since });
  };
  const others = now.members.filter((it) => isOther(now, it));
  if (isGone()) {
    add("stale", "now", `Node ${now.nodeID} has not answered this page for ${lasting(ageMs)}`,
      `See whether it runs, and read the end of its log. ${state.failure}`);
  }
  if (now.leaving !== "no") {
    add("leaving", "soon", `This node ${now.leaving === "removed" ? "was removed from the cluster" : "is stopping"}`,
      "Look at the page of another node.");
  }
  if (!now.leader) {
    add("leader", "now", "This node knows no leader", MAJORITY);
  } else if (now.leads && !now.hasGrant && !now.interval) {
    add("grant", "now", "The leader may not answer yet", "It needs a range of epochs on a majority of disks. Look at " +
      "the disks and links of the nodes.");
  }
  if (now.interval?.refusal) {
    add("intervals", "soon", `This node gives no intervals: ${now.interval.refusal}`, INTERVALS);
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
    const isUrgent = isVoter(it) && spare <= 0;
    const left = spare < 0 ? "Too few nodes answer." : "The loss of one more stops the service.";
    add(`silent${it.nodeID}`, isUrgent ? "now" : "soon", `Node ${it.nodeID} has not answered ${silence(it)}`, "Start " +
      `it, or repair the network to ${it.raftAddr}. If its disk is gone, replace it. ${isUrgent ? left : ""}`);
  }
  if (now.status === "outvoted") {
    add("clock", "now", "The clock of this node is wrong, and the clocks of the others are used",
      "Set the clock of this machine right (chronyc tracking).");
  } else if (now.status === "jumped") {
    add("clock", "now", "The clock of this node jumped, and too few nodes answer to confirm it",
      "Compare it with other clocks. If it is wrong, set it right; if it is right, restart this node.");
  }
  if (now.leads && now.settings.LEASE_MS > 0 && now.leaseClock !== "allowed") {
    add("lease", "soon", `The leader takes no lease: ${now.leaseClock}`,
      "It asks a quorum. Its log says why.");
  }
  const election = Number(now.nodeSettings.ELECTION_TIMEOUT_MS);
  for (const { nodeID, offsetMs, heard, behind, usualMs } of others.filter((it) => !isSilent(it))) {
    if (Math.abs(offsetMs) > now.settings.CLOCK_OFFSET_MAX_MS) {
      add(`apart${nodeID}`, "now", `The clock of node ${nodeID} differs by ${signed(offsetMs)}`,
        "epicepoch clock names the clock that is wrong. Set it right.");
    }
    if (heard === false || behind > BEHIND_MAX) {
      add(`behind${nodeID}`, "soon", heard ? `Node ${nodeID} is ${count(behind)} log entries behind`
        : `The leader does not hear node ${nodeID}`, "Look at its disk, its log, and the network to it.");
    }
    if (usualMs * 8 > election) {
      add(`trip${nodeID}`, "soon", `The round trip to node ${nodeID}, ${ms(usualMs)}, is too long for ` +
        `ELECTION_TIMEOUT_MS=${election}`, "Run epicepoch tune, and set what it advises.");
    }
  }
  const last = state.samples.at(-1).values;
  if (now.lagMs > 1000 && last.answered > 10) {
    add("lag", "soon", `Timestamps are ${ms(now.lagMs)} old`, LINKS);
  }
  if (now.leadMs > 60_000) {
    add("ceiling", "soon", `The ceiling is ${lasting(now.leadMs)} ahead of the clock`,
      "The service continues, but epochs stand still until the clock has caught up.");
  }
  if (now.confirmLinks < now.confirmLinksMax && !others.some(isSilent)) {
    add("links", "soon", `${now.confirmLinks} of ${now.confirmLinksMax} confirm links are connected`,
      "Check the logs of the other nodes, and firewalls that cut idle connections.");
  }
  if (lately("headlessMs", 1) > 30_000) {
    add("headless", "now", "Requests are refused, because there is no leader or no quorum", MAJORITY);
  }
  for (const [name, urgency, above, minutes, title, advice] of EVENTS) {
    const times = lately(name, minutes);
    if (times > above) add(name, urgency, `${title}: ${count(times)} in ${minutes} min`, advice);
  }
  if (last.disk99 > 100) {
    add("disk", "soon", `A write to the disk takes ${ms(last.disk99)}`, "Move other programs off this disk.");
  }
  for (const it of now.certificates.filter((it) => it.daysLeft < 30)) {
    const isOver = it.daysLeft < 0;
    add(it.setting, isOver ? "now" : "soon", `The certificate of ${it.setting} ` +
      (isOver ? "has expired" : `expires in ${it.daysLeft} days`), "Put a new pair in its place.");
  }
  const versions = new Set([now.version, ...others.flatMap((it) => it.version ?? [])]);
  if (versions.size > 1) {
    add("versions", "soon", `Nodes run different versions: ${[...versions].join(", ")}`, "Finish the upgrade.");
  }
  if (!now.ready && !found.length) add("ready", "soon", "This node is not ready", "Look at the end of its log.");
  return found.sort((a, b) => a.urgency.localeCompare(b.urgency));
}

const LEVELS = { ok: "✓ All is well", old: "… Asks again", soon: "▲ Look at it soon", now: "✕ Act now" };

function drawHero(now, found, ageMs) {
  const level = found[0]?.urgency ?? (isOld() ? "old" : "ok");
  const className = { ok: "ok", now: "bad" }[level] ?? "warn";
  const gone = isGone();
  const leader = now.leader ? `Node ${now.leader.nodeID} leads` : "No leader";
  const headline = gone ? `Node ${now.nodeID} does not answer` : leader;
  const answering = now.members.filter((it) => !isOther(now, it) || !isSilent(it)).length;
  const rate = state.samples.at(-1)?.values.timestamps;
  const parts = [
    // A node that has started later cannot know since when.
    `${now.leads ? "Since" : now.leader ? "Seen since" : "None since"} ${utc(wallMs(now) - now.leaderForMs)}, for ` +
      lasting(now.leaderForMs + (gone ? 0 : ageMs)),
    `term ${now.term}`, `${answering} of ${now.members.length} nodes answer`,
  ];
  if (now.leads && rate !== undefined) parts.push(`${count(rate)} timestamps/s`);
  $("hero").className = `card ${className}`;
  set($("verdict"), LEVELS[level]);
  set($("headline"), headline);
  set($("subline"), gone ? `This is what it said at ${utc(wallMs(now))}, ${lasting(ageMs)} ago: ${leader}. ` +
    parts.slice(0, 3).join(" · ") : parts.join(" · "));
  document.title = `${LEVELS[level][0]} ${headline} – ${now.clusterName}`;
}

function drawWarnings(found) {
  $("attention").hidden = found.length === 0;
  const fresh = found.filter((it) => !state.told.has(it.id));
  // The titles of others change every second, such as how long a node is silent. They are told once.
  if (fresh.length) set($("said"), fresh.map((it) => it.title).join(". "));
  state.told = new Map(found.map((it) => [it.id, it.since]));
  keyed($("warnings"), found, (it) => it.id, () => make("li", "", make("span"), make("b"), make("p")), (li, it) => {
    li.className = it.urgency;
    set(li.children[0], it.urgency === "now" ? "✕ Now" : "▲ Soon");
    set(li.children[1], it.title);
    set(li.children[2], it.advice);
  });
}

function health(now, it) {
  if (!isOther(now, it)) {
    return isGone() ? ["bad", "✕ no answer", ""] : now.ready ? ["ok", "● ready", ""] : ["bad", "✕ not ready", ""];
  }
  if (isSilent(it)) return ["bad", "✕ silent", silence(it)];
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
    const [head, role, how, behind, trip, offset, version] = row.children;
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
    set(offset, isSelf ? now.status : gone || it.offsetMs === null ? "–" : signed(it.offsetMs));
    set(version, (isSelf ? now.version : it.version) ?? "–");
  });
}

const one = (key, label = "") => () => [[key, label]];
const peers = (key) => (now) => {
  const size = (it) => Math.abs(state.samples.at(-1)?.values[key + it.nodeID] ?? 0);
  return now.members.filter((it) => isOther(now, it)).sort((a, b) => size(b) - size(a)).slice(0, 3)
    .sort((a, b) => a.nodeID - b.nodeID).map((it) => [key + it.nodeID, `node ${it.nodeID}`]);
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

function scale(max) {
  if (max <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(max));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((top) => top >= max * 0.999);
}

function spanMs() {
  const kept = clock() - (state.samples[0]?.at ?? 0);
  return Math.min(WINDOW_MS, Math.max(2, Math.ceil(kept / 60_000)) * 60_000);
}

function drawCharts(now) {
  const x = (at) => (WIDTH * (1 - (clock() - at) / spanMs())).toFixed(1);
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
      let [path, isLinked] = ["", false];
      for (const it of state.samples) {
        const value = it.values[key];
        const isKnown = Number.isFinite(value);
        if (isKnown) path += isLinked ? `L${x(it.at)} ${y(value)}` : `M${x(it.at)} ${y(value)}h.1`;
        isLinked = isKnown;
      }
      parts.push(draw("path", { class: `s${at % 3}`, d: path }));
      const value = shown?.values[key];
      texts.push([label, value === undefined || value === null ? "–" : format(value)]);
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
  keyed($(id), pairs, ([name]) => name, ([name]) => make("div", "", make("dt", "", name), make("dd")),
    (row, [, value]) => set(row.children[1], String(value) || "–"));
}

function drawLists(now) {
  drawList("settings", Object.entries(now.settings));
  drawList("node-settings", Object.entries(now.nodeSettings));
  drawList("identity", [
    ["Version", `${now.version}, commit ${now.commit.slice(0, 12)}`],
    ["Started", utc(wallMs(now) - now.uptimeMs)], ["Cluster", now.cluster], ["History", now.history],
    ["Ceiling ahead of the clock", ms(now.leadMs)],
    ["Confirm links", `${now.confirmLinks} of ${now.confirmLinksMax}`],
    ["Client connections", count(now.counters.connectionsOpen)],
    ["Waiting requests", count(now.counters.waitingRequests)],
  ]);
  set($("foot"), `Times, rates and latencies are those of node ${now.nodeID}; percentiles are estimates.`);
}

// Whether the data is old: the node did not answer, or the browser did not ask, as after a sleep.
const isOld = () => clock() - state.receivedAt > (document.hidden ? STALE_HIDDEN_MS : STALE_MS);
const isGone = () => isOld() && state.failure !== null;

// How old the data is. This part changes every second, and is not announced.
function drawAge() {
  const ageMs = clock() - state.receivedAt;
  $("age").className = `pill ${state.document && !isOld() ? "ok" : "bad"}`;
  set($("age"), !state.document ? "No answer yet" : ageMs < 3000 ? "Live" : `Updated ${lasting(ageMs)} ago`);
  $("data").classList.toggle("stale", Boolean(state.document) && isOld());
  return ageMs;
}

function fail(headline, text) {
  $("hero").className = "card bad";
  set($("verdict"), LEVELS.now);
  set($("headline"), headline);
  set($("subline"), text);
  document.title = `✕ ${headline}`;
}

function drawAll() {
  const now = state.document;
  const ageMs = drawAge();
  $("data").hidden = false;
  $("data").classList.toggle("empty", !now);
  $("forget").hidden = !state.token;
  if (!now) return fail("This node gives no answer", state.failure);
  const found = warnings(now, ageMs);
  set($("name"), now.clusterName);
  set($("seen"), `EpicEpoch, seen from node ${now.nodeID} at ${now.addr}`);
  drawHero(now, found, ageMs);
  drawWarnings(found);
  drawNodes(now);
  drawCharts(now);
  drawLists(now);
}

// Draws everything. An error of this page is shown, too.
function refresh() {
  try {
    drawAll();
  } catch (error) {
    fail("This page has an error", `${error}. Look at the page of another node, or run epicepoch status.`);
  }
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

// Asks the node, and returns its answer and the text of it.
async function ask(method, path) {
  try {
    const answer = await fetch(path, {
      method, headers: state.token ? { authorization: `Bearer ${state.token}` } : {},
      cache: "no-store", redirect: "error", signal: AbortSignal.timeout(TIMEOUT_MS),
    });
    return [answer, await answer.text()];
  } catch {
    throw new Error("It cannot be reached from this browser.");
  }
}

async function poll() {
  const { token } = state;
  turns += 1;
  const turn = turns;
  const isLate = () => turn !== turns;
  try {
    // The page says whether a token is needed. To ask /status without one would count as a caller without the right.
    const isAsked = !token && !state.document && (await ask("HEAD", "/ui"))[0].headers.has("www-authenticate");
    const [answer, body] = isAsked ? [{ status: 401 }] : await ask("GET", "/status");
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
    const at = clock();
    if (state.document) {
      keep({ at, wallMs: wallMs(state.document) + at - state.receivedAt, values: {}, events: {} });
    }
    state.failure = error.message;
  }
  refresh();
  clearTimeout(timer);
  timer = setTimeout(poll, document.hidden ? POLL_HIDDEN_MS : POLL_MS);
}

function moveCursor(at) {
  state.cursor = at;
  if (state.document) drawCharts(state.document);
}

$("charts").addEventListener("pointermove", (event) => {
  const plot = event.target.closest("figure")?.querySelector("svg").getBoundingClientRect();
  if (!plot || state.samples.length === 0) return;
  const at = clock() - spanMs() * (1 - (event.clientX - plot.left) / plot.width);
  const distance = (it) => Math.abs(it.at - at);
  moveCursor(state.samples.reduce((best, it) => (distance(it) < distance(best) ? it : best)).at);
});
$("charts").addEventListener("pointerleave", () => moveCursor(null));
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
  if (document.hidden || !$("entry").hidden) return;
  if (state.document) refresh();
  poll();
});
setInterval(() => {
  if (!$("entry").hidden) return;
  drawAge();
  if (state.document && isOld()) refresh();
}, 1000);

try {
  state.token = sessionStorage.getItem(TOKEN) ?? "";
} catch {
  // The form asks for it again.
}
poll();
