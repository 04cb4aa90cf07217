"use strict";
// The page adds the uploads itself, modulo 2^bits; every other number was made by the library.
(() => {
const $ = id => document.getElementById(id);
const data = JSON.parse($("data").textContent);
const PHONES = data.held.length, SIZE = data.rows * data.width, COLUMNS = 32;
const MODULUS = 2 ** data.bits, ROWS_SHOWN = 8;
const PAUSE = 90; // steps of 15 ms
const still = matchMedia("(prefers-reduced-motion: reduce)");
const dark = matchMedia("(prefers-color-scheme: dark)");
const state = {phone: data.chosen, added: 0, level: 0, printing: false};
let playing = 0;

// Arrays travel as base64 of little-endian 16-bit integers, and browsers are little-endian.
function integers(text, Kind) {
  return new Kind(Uint8Array.from(atob(text), letter => letter.charCodeAt(0)).buffer);
}
const uploads = integers(data.uploads, Uint16Array), opened = integers(data.opened, Uint16Array);
const marks = integers(data.marks, Int16Array);
const levels = data.levels.map(one => ({...one, released: integers(one.released, Int16Array)}));

function centred(value) {
  const rest = value & (MODULUS - 1);
  return rest < MODULUS / 2 ? rest : rest - MODULUS;
}
const uploadOf = phone => uploads.subarray(phone * SIZE, (phone + 1) * SIZE);

// What the server holds after so many uploads; after the last it takes off the opened self masks.
function sum(added) {
  const total = new Uint16Array(SIZE);
  for (let phone = 0; phone < added; phone++) {
    const upload = uploadOf(phone);
    for (let at = 0; at < SIZE; at++) total[at] += upload[at];
  }
  if (added === PHONES) for (let at = 0; at < SIZE; at++) total[at] -= opened[at];
  return Array.from(total, centred);
}

function sketchOf(phone) {
  const sketch = new Array(SIZE).fill(0);
  for (const mark of marks.subarray(phone * data.rows, (phone + 1) * data.rows))
    sketch[Math.abs(mark) - 1] += Math.sign(mark);
  return sketch;
}

// ---- pictures ----

const LIGHT = {none: [255, 255, 255], plus: [31, 90, 180], minus: [208, 88, 12]};
const DARK = {none: [22, 22, 22], plus: [122, 176, 255], minus: [255, 160, 84]};

function draw(canvas, values, label) {
  const most = values.reduce((so, value) => Math.max(so, Math.abs(value)), 1);
  const colours = dark.matches && !state.printing ? DARK : LIGHT;
  canvas.width = COLUMNS;
  canvas.height = SIZE / COLUMNS;
  const context = canvas.getContext("2d"), image = context.createImageData(COLUMNS, SIZE / COLUMNS);
  values.forEach((value, at) => {
    const share = (Math.abs(value) / most) ** 0.6, end = value > 0 ? colours.plus : colours.minus;
    for (let part = 0; part < 3; part++)
      image.data[4 * at + part] = colours.none[part] + share * (end[part] - colours.none[part]);
    image.data[4 * at + 3] = 255;
  });
  context.putImageData(image, 0, 0);
  canvas.setAttribute("aria-label", label);
  return most;
}

const name = phone => `phone ${phone + 1}`;
const word = phone => data.words[data.held[phone]];
const say = text => { $("spoken").textContent = text; };

function showPhone() {
  const upload = uploadOf(state.phone);
  $("holds").replaceChildren(`Phone ${state.phone + 1} holds `, strong(word(state.phone)), ".");
  draw($("sketch"), sketchOf(state.phone),
    `The sketch of ${name(state.phone)}: ${data.rows} marks among ${SIZE} counters.`);
  draw($("upload"), Array.from(upload, centred),
    `What ${name(state.phone)} sends: ${SIZE} numbers that look random.`);
  $("numbers").textContent = `${[...upload.subarray(0, 4)].join(" ")} …`;
  [...$("phones").children].forEach((button, phone) => {
    const chosen = phone === state.phone;
    button.setAttribute("aria-checked", chosen);
    button.tabIndex = chosen ? 0 : -1;
    // its word is told of the chosen one alone
    button.setAttribute("aria-label", chosen ? `Phone ${phone + 1}: ${word(phone)}` : `Phone ${phone + 1}`);
    button.title = button.getAttribute("aria-label");
  });
}

function strong(text) {
  const made = document.createElement("strong");
  made.textContent = text;
  return made;
}

function statusOf(added) {
  if (added === 0) return "Nothing yet. Move the slider.";
  if (added < PHONES - 1) return `${added} of ${PHONES}: noise.`;
  if (added < PHONES) return `${added} of ${PHONES}: still noise. One is missing.`;
  const {epsilon} = levels[state.level];
  return epsilon === null ? `All ${PHONES}: the masks cancel, and the sum appears.`
    : `All ${PHONES}, published with noise of epsilon ${epsilon}.`;
}

function showSum() {
  const all = state.added === PHONES, level = levels[state.level];
  // noise is the library's: the page has its sum, and draws what the server would publish
  const values = all && level.epsilon !== null ? Array.from(level.released) : sum(state.added);
  const most = draw($("sum"), values, statusOf(state.added));
  $("status").textContent = statusOf(state.added);
  const range = `Orange −${most.toLocaleString("en")}, blue +${most.toLocaleString("en")}.`;
  $("scale").textContent = state.added ? `${SIZE} counters. ${range}` : `${SIZE} counters, all 0.`;
  $("why").textContent = all
    ? "Strong colours mark frequent words. Nothing here says which phone marked them."
    : "Masks shared by two phones hide every upload. They cancel only once both are added.";
  $("added").value = state.added;
  $("added").setAttribute("aria-valuetext", `${state.added} of ${PHONES} phones added`);
  [...$("phones").children].forEach((button, phone) =>
    button.classList.toggle("added", phone < state.added));
  $("closed").hidden = all;
  $("answer").hidden = !all;
  if (all) showAnswer();
}

// ---- the answer ----

function piece(kind, from, to, most) {
  const made = document.createElement("i"), at = value => 100 * Math.min(1, Math.max(0, value / most));
  made.className = kind;
  made.style.left = `${at(from)}%`;
  if (to !== undefined) made.style.width = `${at(to) - at(from)}%`;
  return made;
}

function cell(kind, text) {
  const made = document.createElement(kind);
  made.textContent = text;
  return made;
}

function rowOf(place, level, most) {
  const row = document.createElement("tr"), track = document.createElement("td");
  const told = level.low[place] > 0, inner = document.createElement("div");
  const head = cell("th", data.words[place]);
  head.scope = "row";
  // what cannot be told from 0 has no bar
  if (told) inner.append(piece("range", level.low[place], level.high[place], most),
    piece("bar", 0, level.counts[place], most));
  inner.append(piece("true", data.truth[place], undefined, most));
  inner.setAttribute("aria-hidden", "true");
  track.className = "track";
  track.append(inner);
  const decoded = cell("td", told ? Math.round(level.counts[place]) : "lost");
  decoded.className = told ? "" : "lost";
  row.append(head, track, decoded, cell("td", data.truth[place]));
  return row;
}

function showAnswer() {
  const level = levels[state.level], own = data.held[state.phone];
  const shown = data.words.slice(0, ROWS_SHOWN).map((_, place) => place);
  const most = 1.3 * data.truth[0];
  $("bars").replaceChildren(...shown.map(place => rowOf(place, level, most)));
  if (own < ROWS_SHOWN) $("bars").children[own].className = "own";
  else {
    const row = rowOf(own, level, most);
    row.className = "own";
    $("bars").append(row);
  }
  $("chosen").textContent = level.epsilon ?? "none";
  $("epsilon").setAttribute("aria-valuetext", level.epsilon ? `epsilon ${level.epsilon}` : "no noise");
  if (level.epsilon === null) {
    $("attack").textContent = `No noise: someone who knows the other ${PHONES - 1} words subtracts`
      + ` them and reads ${name(state.phone)}.`;
    $("bound").textContent = state.printing ? "" : "Move the slider to hide it, even from them.";
  } else {
    $("attack").textContent = `Someone who knows the other ${PHONES - 1} words recognises`
      + ` ${name(state.phone)} in at most ${level.promised} of campaigns.`;
    $("bound").textContent = `They accept ${data.false_alarms} false alarms; guessing blindly would find`
      + ` ${data.false_alarms}. This noise in particular allows at most ${level.proven}.`;
  }
}

// ---- controls ----

function choose(phone, focus) {
  state.phone = (phone + PHONES) % PHONES;
  showPhone();
  if (state.added === PHONES) showAnswer();
  if (focus) $("phones").children[state.phone].focus();
}

function add(number) {
  state.added = number;
  showSum();
}

function stop() {
  cancelAnimationFrame(playing);
  playing = 0;
}

function play() {
  stop();
  if (still.matches) {
    add(PHONES);
    say(statusOf(PHONES));
    return;
  }
  const from = state.added === PHONES ? 0 : state.added, begun = performance.now();
  const step = now => {
    // one phone before the end it waits: the picture is still noise there
    const elapsed = Math.floor((now - begun) / 15), rest = PHONES - 1 - from;
    const number = elapsed > rest + PAUSE ? PHONES : from + Math.min(elapsed, rest);
    if (number !== state.added) add(number);
    if (number < PHONES) playing = requestAnimationFrame(step);
    else say(statusOf(PHONES));
  };
  playing = requestAnimationFrame(step);
}

function pressed(event) {
  const across = getComputedStyle($("phones")).gridTemplateColumns.split(" ").length;
  const steps = {ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across};
  const ends = {Home: 0, End: PHONES - 1};
  if (event.key in steps) choose(state.phone + steps[event.key], true);
  else if (event.key in ends) choose(ends[event.key], true);
  else return;
  event.preventDefault();
}

function redraw() {
  showPhone();
  showSum();
  draw($("before"), sum(PHONES - 1), `The sum of ${PHONES - 1} uploads: noise.`);
}

for (let phone = 0; phone < PHONES; phone++) {
  const button = document.createElement("button");
  button.type = "button";
  button.setAttribute("role", "radio");
  button.addEventListener("click", () => choose(phone));
  $("phones").append(button);
}
$("phones").addEventListener("keydown", pressed);
$("added").addEventListener("input", event => { stop(); add(+event.target.value); });
$("added").addEventListener("change", () => say(statusOf(state.added)));
$("epsilon").addEventListener("input", event => { state.level = +event.target.value; showSum(); });
$("epsilon").addEventListener("change", () => say($("attack").textContent));
$("play").addEventListener("click", play);
$("open").addEventListener("click", play);
dark.addEventListener("change", redraw);
// on paper stands the end: a phone, the noise before the last one, and the answer
let kept = 0;
addEventListener("beforeprint", () => {
  stop();
  kept = state.added;
  state.added = PHONES;
  state.printing = true;
  redraw();
});
addEventListener("afterprint", () => {
  state.added = kept;
  state.printing = false;
  redraw();
});
document.querySelector("main").hidden = false;
redraw();
// for tests: what the page found, not what it was told
globalThis.fedtallyShow = {sum, counters: () => sum(state.added), uploadOf: at => [...uploadOf(at)]};
})();
