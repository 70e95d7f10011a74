// Draws the report of a training from the JSON in #data. Every text goes to the page as text (textContent), never as markup.
(function () {
  'use strict';

  const data = JSON.parse(document.getElementById('data').textContent);
  const root = document.getElementById('report');
  const colors = ['#2563eb', '#d9480f', '#2b8a3e', '#9c36b5', '#c2255c', '#0b7285'];
  const mostPoints = 1500;

  function element(parent, tag, text, attributes) {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    if (parent) parent.appendChild(node);
    return node;
  }
  function section(title, note) {
    const node = element(root, 'section');
    element(node, 'h2', title);
    if (note) element(node, 'p', note, {class: 'note'});
    return node;
  }
  const short = (x) => (Math.abs(x) >= 1000 ? Math.round(x).toLocaleString('en') : String(Number(x.toPrecision(4))));

  // What belongs on one chart; every other number gets a chart of its own.
  const groups = [
    ['Loss', ['loss', 'eval_loss']],
    ['Reward and accuracy', ['reward', 'accuracy']],
    ['Tokens of a response', ['mean_length', 'max_length']],
    ['KL to the start', ['kl']],
    ['Entropy', ['entropy']],
    ['Shares of responses and groups', ['truncated', 'frac_reward_zero_std', 'valid', 'repetition']],
    ['Share of clipped tokens', ['clip_ratio']],
    ['Gradient norm', ['grad_norm']],
    ['Learning rate', ['learning_rate']],
    ['Tokens per second', ['tokens_per_second']],
    ['Seconds of a step', ['seconds', 'rollout_seconds', 'score_seconds', 'update_seconds']],
  ];

  const series = new Map();  // name -> points
  for (const line of data.metrics) {
    if (typeof line.step !== 'number') continue;
    for (const [name, value] of Object.entries(line)) {
      if (name === 'step' || name === 'epoch' || typeof value !== 'number') continue;
      if (!series.has(name)) series.set(name, []);
      series.get(name).push({x: line.step, y: value});
    }
  }

  // Means of neighbouring points, where there are more than can be seen.
  function thinned(points) {
    if (points.length <= mostPoints) return points;
    const size = Math.ceil(points.length / mostPoints);
    const out = [];
    for (let i = 0; i < points.length; i += size) {
      const part = points.slice(i, i + size);
      out.push({x: part[part.length - 1].x, y: part.reduce((sum, p) => sum + p.y, 0) / part.length});
    }
    return out;
  }
  // Mean over the last points, about a thirtieth of all.
  function smooth(points) {
    const width = Math.max(1, Math.round(points.length / 30));
    let sum = 0;
    return points.map((p, i) => {
      sum += p.y - (i >= width ? points[i - width].y : 0);
      return {x: p.x, y: sum / Math.min(i + 1, width)};
    });
  }

  function chart(parent, title, names) {
    const box = element(parent, 'div', null, {class: 'chart'});
    element(box, 'h3', title);
    const canvas = element(element(box, 'div', null, {class: 'canvas'}), 'canvas', null, {role: 'img', 'aria-label': title});
    const datasets = [];
    names.forEach((name, i) => {
      const points = thinned(series.get(name));
      const color = colors[i % colors.length];
      const few = points.length < 60;
      if (!few) {
        datasets.push({label: name + ', each step', data: points, borderColor: color + '40', borderWidth: 1, pointRadius: 0, raw: true});
      }
      datasets.push({label: name, data: few ? points : smooth(points), borderColor: color, backgroundColor: color, borderWidth: 2,
                     pointRadius: few ? 3 : 0});
    });
    try {
      new Chart(canvas, {
        type: 'line',
        data: {datasets: datasets},
        options: {
          animation: false, maintainAspectRatio: false, parsing: false,
          interaction: {mode: 'nearest', intersect: false},
          scales: {x: {type: 'linear', title: {display: true, text: 'step'}}, y: {}},
          plugins: {legend: {labels: {filter: (item, all) => !all.datasets[item.datasetIndex].raw}}},
        },
      });
    } catch (error) {
      element(box, 'p', 'This chart could not be drawn: ' + error.message, {class: 'failed warning'});
    }
  }

  Chart.defaults.color = getComputedStyle(document.body).color;
  if (series.size === 0) {
    element(root, 'p', 'No step has been logged yet.', {class: 'note'});
    return;
  }

  const last = data.metrics.reduce((most, line) => Math.max(most, line.step || 0), 0);
  const curves = element(section('Curves', last.toLocaleString('en') + ' steps. Thin lines are single steps, thick ones means over a thirtieth of the run.'),
                         'div', null, {class: 'charts'});
  const shown = new Set();
  for (const [title, names] of groups) {
    const here = names.filter((name) => series.has(name));
    here.forEach((name) => shown.add(name));
    if (here.length > 0) chart(curves, title, here);
  }
  for (const name of series.keys()) if (!shown.has(name)) chart(curves, name, [name]);

  const numbers = section('Numbers');
  const table = element(element(numbers, 'div', null, {class: 'scroll'}), 'table', null, {class: 'numbers'});
  const head = element(element(table, 'thead'), 'tr');
  for (const cell of ['', 'first', 'last', 'mean of the last tenth', 'lowest', 'highest']) element(head, 'th', cell);
  const body = element(table, 'tbody');
  for (const [name, points] of series) {
    const values = points.map((p) => p.y);
    const tenth = values.slice(-Math.max(1, Math.ceil(values.length / 10)));
    const line = element(body, 'tr');
    element(line, 'td', name);
    for (const value of [values[0], values[values.length - 1], tenth.reduce((a, b) => a + b, 0) / tenth.length,
                         values.reduce((a, b) => Math.min(a, b)), values.reduce((a, b) => Math.max(a, b))]) {
      element(line, 'td', short(value));
    }
  }

  const warnings = data.metrics.filter((line) => Array.isArray(line.warnings) && line.warnings.length > 0);
  if (warnings.length > 0) {
    const node = section('Warnings');
    for (const line of warnings) for (const text of line.warnings) element(node, 'p', 'Step ' + line.step + ': ' + text, {class: 'warning'});
  }

  if (data.samples.length > 0) {
    const node = section('Samples', 'The last ' + data.samples.length.toLocaleString('en') + '; samples.jsonl has all.');
    for (const sample of data.samples.slice().reverse()) {
      const facts = ['step ' + sample.step];
      for (const name of ['id', 'budget', 'length', 'verdict', 'reward', 'advantage']) {
        const value = sample[name];
        if (value !== undefined && value !== null) facts.push(name + ' ' + (typeof value === 'number' ? short(value) : value));
      }
      const details = element(node, 'details', null, {class: 'settings'});
      element(details, 'summary', facts.join(', '));
      for (const name of ['prompt', 'completion']) {
        if (typeof sample[name] !== 'string') continue;
        element(details, 'h4', name);
        element(details, 'pre', sample[name]);
      }
    }
  }
})();
