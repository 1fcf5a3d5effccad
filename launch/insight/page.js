const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
const $ = (id) => document.getElementById(id);
const LINES = ["#3b82c4", "#d9480f", "#2b9a5b", "#9b59b6", "#b8860b", "#0e9aa7", "#c2255c", "#6b7280", "#7c5cff", "#84a514"];
const SHARE = ["#0d0b2a", "#3b1268", "#82206d", "#c83e57", "#f0703a", "#fbb61a", "#fcfda4"];
const SIGNED = ["#1b4f9c", "#5d96cf", "#bcd6ec", "#f3f3f3", "#f6c3a8", "#d9744e", "#9c2a17"];
const episode = data.episode, policyBytes = bytes(episode.panels[0].values);
let step = 0, timer = 0, views = [];

function element(tag, className, text) {
  const made = document.createElement(tag);
  if (className) made.className = className;
  if (text !== undefined) made.textContent = text;
  return made;
}

const number = (x) => (x && (Math.abs(x) < 0.001 || Math.abs(x) >= 1e5) ? x.toExponential(1) : String(+x.toPrecision(3)));

/* 256 colors between the given ones, as [r, g, b] */
function ramp(stops) {
  const rgb = stops.map((stop) => [1, 3, 5].map((at) => parseInt(stop.slice(at, at + 2), 16)));
  return Array.from({ length: 256 }, (_, i) => {
    const place = (i / 255) * (rgb.length - 1), first = Math.min(Math.floor(place), rgb.length - 2), part = place - first;
    return rgb[first].map((x, k) => Math.round(x + (rgb[first + 1][k] - x) * part));
  });
}
const RAMPS = { share: ramp(SHARE), signed: ramp(SIGNED) };

/* where step t lies on the axis, 0..1: a step is a column of its own */
const place = (t) => (t + 0.5) / episode.steps;

/* an empty plot, with names beside it at heights 0..1, a line at each mark, and a cursor at the step */
function addPlot(box, height, names) {
  const plot = element("div", "plot"), labels = element("div", "labels"), stage = element("div", "stage");
  const canvas = element("canvas"), cursor = element("div", "cursor");
  canvas.style.height = height + "px";
  for (const [name, y] of names) {
    const label = element("span", "", name);
    label.style.top = y * height + "px";
    label.title = name;
    labels.append(label);
  }
  stage.append(canvas, ...episode.marks.map((mark) => {
    const line = element("div", "event");
    line.style.left = 100 * place(mark.step) + "%";
    return line;
  }), cursor);
  plot.append(labels, stage);
  box.append(plot);
  const at = (event) => Math.max(0, Math.min(episode.steps - 1,
    Math.floor((event.clientX - stage.getBoundingClientRect().left) / stage.clientWidth * episode.steps)));
  stage.addEventListener("pointerdown", (event) => show(at(event)));
  stage.addEventListener("pointermove", (event) => { if (event.buttons) show(at(event)); });
  return { stage, canvas, at, move: () => { cursor.style.left = 100 * place(step) + "%"; } };
}

function heat(panel, box) {
  const values = bytes(panel.values), rows = panel.labels.length, T = episode.steps, colors = RAMPS[panel.scale];
  const height = Math.max(26, Math.min(rows > 40 ? 300 : rows * 17, 420));
  const ends = [...panel.bands.slice(1).map(([, first]) => first), rows];
  let names = panel.bands.map(([name, first], k) => [name, (first + ends[k]) / 2 / rows]);
  if (!names.length) names = panel.labels.map((name, row) => [name, (row + 0.5) / rows]);
  if (names.length > 26) names = [names[0], names.at(-1)];
  const { stage, canvas, at, move } = addPlot(box, height, names);
  canvas.width = T;
  canvas.height = rows;
  canvas.style.imageRendering = "pixelated";
  const context = canvas.getContext("2d"), image = context.createImageData(T, rows);
  values.forEach((value, i) => image.data.set([...colors[value], 255], 4 * i));
  context.putImageData(image, 0, 0);
  for (const [, first] of panel.bands.slice(1)) {
    const line = element("div", "event band");
    line.style.top = first / rows * height + "px";
    stage.append(line);
  }
  const said = element("p", "said"), scale = element("span", "scale"), words = element("span");
  scale.style.background = `linear-gradient(to right, ${(panel.scale === "signed" ? SIGNED : SHARE).join(",")})`;
  said.append(number(panel.low), scale, number(panel.high), words);
  stage.addEventListener("pointermove", (event) => {
    const row = Math.min(rows - 1, Math.floor((event.clientY - stage.getBoundingClientRect().top) / height * rows)), t = at(event);
    const value = panel.low + values[row * T + t] / 255 * (panel.high - panel.low);
    words.textContent = `\u2003${panel.labels[row]}, step ${t}: ${number(value)}`;
  });
  box.append(said);
  return move;
}

function lines(panel, box) {
  const height = 104, width = 1200, { low, high } = panel;
  const { canvas, move } = addPlot(box, height, [[number(high), 8 / height], [number(low), 1 - 8 / height]]);
  const context = canvas.getContext("2d");
  canvas.width = width;
  canvas.height = 2 * height;
  const y = (value) => 4 + (2 * height - 8) * (1 - (value - low) / (high - low));
  if (low < 0) {
    context.strokeStyle = "rgba(128,128,128,.6)";
    context.beginPath(); context.moveTo(0, y(0)); context.lineTo(width, y(0)); context.stroke();
  }
  context.lineWidth = 2.4;
  context.lineJoin = "round";
  panel.values.forEach((series, k) => {
    context.strokeStyle = LINES[k % LINES.length];
    context.beginPath();
    series.forEach((value, t) => { if (Number.isFinite(value)) context.lineTo(width * place(t), y(value)); });
    context.stroke();
  });
  const legend = element("p", "legend"), said = panel.labels.map((name, k) => {
    const entry = element("span"), swatch = element("i"), value = element("b");
    swatch.style.background = LINES[k % LINES.length];
    entry.append(swatch, name + " ", value);
    legend.append(entry);
    return value;
  });
  box.append(legend);
  return () => { move(); said.forEach((value, k) => { value.textContent = number(panel.values[k][step]); }); };
}

function present() {
  const over = step === episode.steps - 1 && episode.complete, actions = episode.actions[step];
  const single = actions.length === 1 && Number.isInteger(actions[0]);
  const taken = single ? data.actionNames[actions[0]] : actions.map(number).join(", ");
  const rows = [["step", `${step} of ${episode.steps - 1}`], ["action", over ? "none, the episode is over" : taken],
    ["value", number(episode.values[step])], ["reward", number(episode.rewards[step])],
    ["return so far", number(episode.rewards.slice(1, step + 1).reduce((sum, x) => sum + x, 0))]];
  for (const [name, fact] of Object.entries(episode.facts)) {
    rows.push([name.replaceAll("_", " "), fact.names.length ? fact.names[fact.values[step]] : String(fact.values[step])]);
  }
  for (const [name, series] of Object.entries(episode.scalars)) rows.push([name, number(series[step])]);
  $("now").replaceChildren(...rows.map(([name, value]) => {
    const row = element("tr"), cell = element("td", "", value);
    cell.id = "now-" + name.replaceAll(" ", "-");
    row.append(element("td", "", name), cell);
    return row;
  }));
}

function policy() {
  const panel = episode.panels[0], chosen = episode.actions[step].length === 1 ? episode.actions[step][0] : -1;
  if (panel.scale !== "share") return;
  $("policy").replaceChildren(...panel.labels.map((name, k) => {
    const share = policyBytes[k * episode.steps + step] / 255;
    const bar = element("div", "bar" + (k === chosen ? " taken" : "")), hull = element("div"), fill = element("i");
    fill.style.width = 100 * share + "%";
    hull.append(fill);
    bar.append(element("span", "", name), hull, element("span", "", share.toFixed(2)));
    return bar;
  }));
}

function show(t) {
  step = Math.max(0, Math.min(episode.steps - 1, t));
  $("step").value = step;
  for (const [image, indices] of images) image.src = episode.images[indices[step]];
  present();
  policy();
  views.forEach((update) => update());
  [...$("marks").children].forEach((chip, k) => chip.classList.toggle("past", episode.marks[k].step <= step));
}

function play(on) {
  clearInterval(timer);
  timer = 0;
  $("play").textContent = on ? "Pause" : "Play";
  if (!on) return;
  if (step === episode.steps - 1) show(0);
  timer = setInterval(() => { show(step + 1); if (step === episode.steps - 1) play(false); }, 100);
}

const shown = [["board", "the whole board", episode.boards],
  ...Object.entries(episode.seen).map(([name, indices]) => ["seen", name, indices]), ["view", "the agent's view", episode.views]];
const images = shown.filter(([, , indices]) => indices.length).map(([kind, name, indices]) => {
  const figure = element("figure", kind), image = Object.assign(new Image(), { alt: name, decoding: "sync" });
  figure.append(image, element("figcaption", "", name));
  $("images").append(figure);
  return [image, indices];
});
$("title").textContent = data.title;
$("about").textContent = data.about;
$("step").max = episode.steps - 1;
$("marks").append(...episode.marks.map((mark) => {
  const chip = element("button", "", `${mark.step}: ${mark.text}`);
  chip.addEventListener("click", () => show(mark.step));
  return chip;
}));
views = episode.panels.map((panel) => {
  const box = element("div", "panel");
  box.append(element("h2", "", panel.title), element("p", "note", panel.note));
  $("panels").append(box);
  return panel.kind === "heat" ? heat(panel, box) : lines(panel, box);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const moves = { ArrowRight: () => show(step + 1), ArrowLeft: () => show(step - 1), Home: () => show(0),
    End: () => show(episode.steps - 1), " ": () => play(!timer) };
  if (!(event.key in moves)) return;
  event.preventDefault();
  moves[event.key]();
});
$("step").addEventListener("input", () => show(Number($("step").value)));
$("play").addEventListener("click", () => { play(!timer); $("play").blur(); });
show(0);
