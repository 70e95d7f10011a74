// Draws the report of a quantization from the JSON in #data. Every text goes to the page as text (textContent), never
// as markup.
(function() {
'use strict';

const data = JSON.parse(document.getElementById('data').textContent);
const root = document.getElementById('report');
const colors = ['#2563eb', '#d9480f', '#2b8a3e', '#9c36b5', '#c2255c', '#0b7285', '#5c940d'];
const add = (parent, tag, text, className) => {
  const node = document.createElement(tag);
  if (text !== undefined && text !== null) node.textContent = text;
  if (className) node.setAttribute('class', className);
  parent.appendChild(node);
  return node;
};
const section = (title, note) => {
  const node = add(root, 'section');
  add(node, 'h2', title);
  if (note) add(node, 'p', note, 'note');
  return node;
};
const short = (x) => (typeof x === 'number' ? String(Number(x.toPrecision(4))) : x === null ? 'exact' : String(x));

// "model.layers.3.mlp.up_proj" -> {layer: 3, kind: "up_proj"}; what has no layer has its name as the kind.
function placeOf(module) {
  const parts = module.split('.');
  const at = parts.indexOf('layers');
  return at < 0 ? {layer: null, kind: module} : {layer: Number(parts[at + 1]), kind: parts[parts.length - 1]};
}
// Rows of [module, value] as one line of points by layer for each kind, and the values without a layer.
function byKind(rows) {
  const lines = new Map();
  const single = [];
  for (const [module, value] of rows) {
    if (typeof value !== 'number') continue;
    const place = placeOf(module);
    if (place.layer === null) {
      single.push([module, value]);
      continue;
    }
    if (!lines.has(place.kind)) lines.set(place.kind, []);
    lines.get(place.kind).push({x: place.layer, y: value});
  }
  return {lines: lines, single: single};
}

function chart(parent, title, lines, yTitle, logarithmic) {
  const box = add(parent, 'div', null, 'chart');
  add(box, 'h3', title);
  const canvas = add(add(box, 'div', null, 'canvas'), 'canvas');
  canvas.setAttribute('role', 'img');
  canvas.setAttribute('aria-label', title);
  const datasets = Array.from(lines, ([label, points], i) => {
    const color = colors[i % colors.length];
    return {label: label, data: points, borderColor: color, backgroundColor: color, borderWidth: 2, pointRadius: 2};
  });
  try {
    new Chart(canvas, {
      type: 'line',
      data: {datasets: datasets},
      options: {
        animation: false,
        maintainAspectRatio: false,
        parsing: false,
        interaction: {mode: 'nearest', intersect: false},
        scales: {
          x: {type: 'linear', title: {display: true, text: 'layer'}},
          y: {type: logarithmic ? 'logarithmic' : 'linear', title: {display: true, text: yTitle}}
        },
      },
    });
  } catch (error) {
    add(box, 'p', 'This chart could not be drawn: ' + error.message, 'failed warning');
  }
}
function table(parent, head, rows) {
  const node = add(add(parent, 'div', null, 'scroll'), 'table', null, 'numbers');
  const line = add(add(node, 'thead'), 'tr');
  for (const cell of head) add(line, 'th', cell);
  const body = add(node, 'tbody');
  for (const row of rows) {
    const tr = add(body, 'tr');
    for (const cell of row) add(tr, 'td', short(cell));
  }
}

Chart.defaults.color = getComputedStyle(document.body).color;

const facts = section('What was done');
table(facts, ['', ''], Object.entries(data).filter(([, value]) => typeof value !== 'object'));

const stages = [['transforms and ranges', data.end_to_end], ['scales, norms and integers', data.tuning]].filter(
    ([, stage]) => stage);
if (stages.length > 0) {
  const node = section('Training', 'On text that was held out: divergence from the float model, and perplexity.');
  table(
      node, ['stage', 'steps', 'divergence before', 'after', 'perplexity before', 'after', 'of the float model'],
      stages.map(([name, s]) => {
        const before = s.held_out_before || {};
        const after = s.held_out_after || {};
        return [
          name, s.steps, before.divergence, after.divergence, before.perplexity, after.perplexity,
          after.teacher_perplexity
        ].map((x) => (x === undefined ? '' : x));
      }));
}

if (Array.isArray(data.outliers) && data.outliers.length > 0) {
  const node = section(
      'Outliers of inputs',
      'Root mean square of the largest channel over that of all channels, before and after the transforms. 1: all channels are alike.');
  const charts = add(node, 'div', null, 'charts');
  const before = byKind(data.outliers.map((o) => [o.module, o.before]));
  const after = byKind(data.outliers.map((o) => [o.module, o.after]));
  for (const [kind, points] of before.lines) {
    chart(
        charts, 'Input of ' + kind, new Map([['before', points], ['after', after.lines.get(kind) || []]]),
        'largest / all', true);
  }
  if (before.single.length > 0) {
    table(
        node, ['', 'before', 'after'],
        before.single.map(([module, value], i) => [module, value, (after.single[i] || [])[1]]));
  }
}

if (data.sqnr_db) {
  const node = section(
      'Signal to noise of the weights',
      'In dB; more is better. Matrices that were stored exactly are not on the chart.');
  const noise = byKind(Object.entries(data.sqnr_db));
  chart(add(node, 'div', null, 'charts'), 'By layer', noise.lines, 'dB', false);
  table(node, ['', 'dB'], noise.single);
}

if (Array.isArray(data.layers) && data.layers.length > 0) {
  const node = section('Local optimization', 'The norm that T_k, T_v and T_u make smaller, before and after.');
  chart(
      add(node, 'div', null, 'charts'), 'Norm by layer',
      new Map(['loss_before', 'loss_after'].map(
          (name) =>
              [name === 'loss_before' ? 'before' : 'after', data.layers.map((layer, i) => ({x: i, y: layer[name]}))])),
      '', false);
}
})();
