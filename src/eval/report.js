// Draws the report from the JSON in #data. Every text goes to the page as text (textContent), never as markup.
(function () {
  'use strict';

  const data = JSON.parse(document.getElementById('data').textContent);
  const summary = data.summary;
  const root = document.getElementById('report');
  const colors = ['#2563eb', '#d9480f', '#2b8a3e', '#9c36b5', '#c2255c', '#0b7285', '#846400', '#495057'];
  const ways = {off: 'direct', on: 'reasoning', auto: 'switcher'};

  function element(parent, tag, text, attributes) {
    const node = document.createElement(tag);
    if (text !== undefined && text !== null) node.textContent = text;
    for (const [name, value] of Object.entries(attributes || {})) node.setAttribute(name, value);
    if (parent) parent.appendChild(node);
    return node;
  }
  const percent = (x) => (100 * x).toFixed(1) + ' %';
  const range = (s) => percent(s.low) + ' – ' + percent(s.high);
  const number = (x) => Math.round(x).toLocaleString('en');
  const phaseName = (r) => ways[r.mode] + ', cap ' + r.cap.toLocaleString('en');

  function section(title, note) {
    const node = element(root, 'section');
    element(node, 'h2', title);
    if (note) element(node, 'p', note, {class: 'note'});
    return node;
  }

  function fillTable(parent, head, rows) {
    const table = element(element(parent, 'div', null, {class: 'scroll'}), 'table', null, {class: 'numbers'});
    const line = element(element(table, 'thead'), 'tr');
    for (const cell of head) element(line, 'th', cell);
    const body = element(table, 'tbody');
    for (const row of rows) {
      const tr = element(body, 'tr');
      for (const cell of row) element(tr, 'td', cell);
    }
  }

  // ---- charts

  const foreground = getComputedStyle(document.body).color;
  Chart.defaults.color = foreground;
  Chart.defaults.borderColor = 'rgba(128,128,128,0.25)';
  Chart.defaults.animation = false;
  Chart.defaults.maintainAspectRatio = false;

  function chart(parent, title, config) {
    const box = element(parent, 'div', null, {class: 'chart'});
    element(box, 'h3', title);
    const canvas = element(element(box, 'div', null, {class: 'canvas'}), 'canvas', null, {role: 'img', 'aria-label': title});
    try {
      new Chart(canvas, config);
    } catch (error) {
      // One chart that cannot be drawn must not take the rest of the page with it.
      element(box, 'p', 'This chart could not be drawn: ' + error.message, {class: 'failed warning'});
    }
  }
  // A line with a band around it: three data sets, of which the legend shows the line.
  function band(label, color, points, dash) {
    // A single point has no band to see: its ends are drawn.
    const edge = {borderWidth: 0, pointRadius: points.length > 1 ? 0 : 8, pointStyle: 'line', pointBorderWidth: 2,
                  pointBorderColor: color, band: true, backgroundColor: color + '26', tension: 0};
    return [
      Object.assign({label: label + ' low', data: points.map((p) => ({x: p.x, y: p.low})), fill: false}, edge),
      Object.assign({label: label + ' high', data: points.map((p) => ({x: p.x, y: p.high})), fill: '-1'}, edge),
      {label: label, data: points.map((p) => ({x: p.x, y: p.y})), borderColor: color, backgroundColor: color,
       borderDash: dash || [], borderWidth: 2, pointRadius: 3, tension: 0},
    ];
  }
  function axes(xTitle, yTitle, x, y) {
    return {
      parsing: false,
      interaction: {mode: 'nearest', intersect: false},
      scales: {
        x: Object.assign({type: 'linear', title: {display: true, text: xTitle}}, x || {}),
        y: Object.assign({title: {display: true, text: yTitle}}, y || {}),
      },
      plugins: {
        legend: {labels: {filter: (item, all) => !all.datasets[item.datasetIndex].band}},
        tooltip: {filter: (item) => !item.dataset.band},
      },
    };
  }
  // Ticks may be as fine as the data needs: 5 %, 0.25 %.
  const percentTick = (value) => Number((100 * value).toPrecision(4)) + ' %';
  const share = {suggestedMin: 0, suggestedMax: 1, ticks: {callback: percentTick}};
  const tokenCount = (value) => Number(value).toLocaleString('en');

  function accuracyByCap(parent) {
    const datasets = [];
    let next = 0;
    for (const mode of ['off', 'on', 'auto']) {
      const phases = summary.results.filter((r) => r.mode === mode).sort((a, b) => a.cap - b.cap);
      if (phases.length === 0) continue;
      const points = (field) => phases.map((r) => ({x: r.cap, y: r[field].value, low: r[field].low, high: r[field].high}));
      datasets.push(...band(ways[mode] + ', one stream', colors[next++ % colors.length], points('accuracy')));
      if (!phases.some((r) => r.streams > r.questions)) continue;
      datasets.push(...band(ways[mode] + ', majority', colors[next++ % colors.length], points('majority'), [6, 3]));
      if (phases.every((r) => r.weighted)) {
        datasets.push(...band(ways[mode] + ', weighted vote', colors[next++ % colors.length], points('weighted'), [2, 2]));
      }
    }
    const caps = Array.from(new Set(summary.results.map((r) => r.cap))).sort((a, b) => a - b);
    const x = {type: 'logarithmic', ticks: {autoSkip: false, callback: tokenCount},
               afterBuildTicks: (axis) => { axis.ticks = caps.map((value) => ({value: value})); }};
    chart(parent, 'Accuracy × cap', {type: 'line', data: {datasets: datasets},
                                     options: axes('cap (tokens of a stream)', 'accuracy', x, share)});
  }

  function voteCurves(parent) {
    summary.vote_curves.curves.forEach((curve) => {
      const points = (field) => curve.points.filter((p) => p[field]).map(
          (p) => ({x: p.n, y: p[field].mean, low: p[field].mean - p[field].sd, high: p[field].mean + p[field].sd}));
      const datasets = band('majority', colors[0], points('majority'));
      if (curve.points.every((p) => p.weighted)) datasets.push(...band('weighted vote', colors[1], points('weighted')));
      const y = {ticks: {callback: percentTick}};
      chart(parent, 'Vote: ' + phaseName(curve), {type: 'line', data: {datasets: datasets},
                                                  options: axes('streams N', 'accuracy', {ticks: {stepSize: 1}}, y)});
    });
  }

  function sweeps(parent) {
    for (const sweep of summary.threshold_sweeps) {
      const line = (label, color, x, y) => ({label: label, data: sweep.points.map((p) => ({x: p[x], y: p[y], p: p})),
        borderColor: color, backgroundColor: color, showLine: true, pointRadius: 3, tension: 0, borderWidth: 2});
      const draw = (title, xTitle, x, scale) => {
        const options = axes(xTitle, 'accuracy', scale, {ticks: {callback: percentTick}});
        options.plugins.tooltip.callbacks = {label: (item) => {
          const p = item.raw.p;
          return item.dataset.label + ' ' + percent(item.raw.y) + ' at threshold ' + p.threshold.toFixed(4) + ': ' +
                 percent(p.routed_share) + ' routed, ' + number(p.mean_tokens) + ' tokens';
        }};
        chart(parent, title + ' (cap ' + tokenCount(sweep.cap) + ')', {type: 'scatter', data: {datasets: [
          line('one stream', colors[0], x, 'accuracy'), line(sweep.vote + ' vote', colors[1], x, 'vote_accuracy')]},
          options: options});
      };
      draw('Accuracy × routed share', 'share of questions that are reasoned about', 'routed_share', {min: 0, max: 1, ticks: {callback: percentTick}});
      draw('Accuracy × length', 'mean tokens of a stream', 'mean_tokens', {});
    }
  }

  function histograms(parent) {
    for (const r of summary.results) {
      const h = r.length_histogram;
      const labels = h.right.map((_, i) => tokenCount(i * h.bin));
      const options = {
        scales: {x: {stacked: true, title: {display: true, text: 'tokens of a response, from'}},
                 y: {stacked: true, title: {display: true, text: 'responses'}, ticks: {precision: 0}}},
        interaction: {mode: 'index', intersect: false},
      };
      chart(parent, 'Lengths: ' + phaseName(r), {type: 'bar', options: options, data: {labels: labels, datasets: [
        {label: 'right', data: h.right, backgroundColor: colors[2]}, {label: 'not right', data: h.wrong, backgroundColor: colors[1]}]}});
    }
  }

  // ---- numbers

  function settings() {
    const s = summary.settings;
    const node = element(root, 'section');
    if (!summary.complete) {
      element(node, 'p', 'Not complete: ' + summary.questions.done + ' of ' + summary.questions.total + ' questions are done.', {class: 'warning'});
    }
    const t = summary.timing;
    const p = s.sampling;
    element(node, 'p', s.suite.problems + ' problems × ' + s.repeats + ' repeats × ' + s.parallel + ' streams; ' +
      (p.temperature === 0 ? 'greedy' : 'temperature ' + p.temperature + ', top-p ' + p.top_p) + ', seed ' + p.seed + '; ' +
      number(t.tokens) + ' tokens in ' + number(t.seconds) + ' s (' + t.tokens_per_second.toFixed(1) + ' tokens/s)');
    const box = element(node, 'details', null, {class: 'settings'});
    element(box, 'summary', 'All settings');
    element(box, 'pre', JSON.stringify(s, null, 2));
  }

  function results() {
    const node = section('Results', '95 % confidence intervals: Wilson where every problem was one trial, else a bootstrap over problems.');
    const ks = Array.from(new Set(summary.results.flatMap((r) => r.pass_at_k.map((p) => p.k))));
    const head = ['', 'accuracy', '95 %', 'majority', 'weighted vote'].concat(
        ks.map((k) => 'pass@' + k), ['mean tokens', 'median', 'thoughts', 'truncated', 'forced', 'no answer', 'too hard', 'reasoned', 'errors']);
    const passAt = (r, k) => { const found = r.pass_at_k.find((p) => p.k === k); return found ? percent(found.value) : ''; };
    fillTable(node, head, summary.results.map((r) => [
      phaseName(r), percent(r.accuracy.value), range(r.accuracy), percent(r.majority.value),
      r.weighted ? percent(r.weighted.value) : '–'].concat(ks.map((k) => passAt(r, k)), [
      number(r.tokens.mean), number(r.tokens.median), percent(r.tokens.mean > 0 ? r.tokens.reasoning_mean / r.tokens.mean : 0),
      percent(r.truncated_share), percent(r.forced_share), percent(r.no_answer_share), percent(r.too_hard_share),
      percent(r.routed_share), r.errors])));
  }

  function cost() {
    const phases = summary.timing.phases;
    if (phases.length === 0) return;
    const node = section('Cost', 'Time and generated tokens of all runs of the program on this folder, prompts and verification included. A cap whose streams were made on the way to a larger one is paid for there.');
    const fixed = (x, digits) => x > 0 ? x.toFixed(digits) : '–';
    fillTable(node, ['', 'questions', 'tokens', 'seconds', 'tokens/s', 'tokens a question', 'seconds a question', 'tokens a step', 'streams together', 'made on the way'],
      phases.map((p) => [phaseName(p), number(p.questions), number(p.tokens), p.seconds.toFixed(1), fixed(p.tokens_per_second, 1),
        fixed(p.tokens_per_question, 1), fixed(p.seconds_per_question, 2), fixed(p.steps > 0 ? p.tokens / p.steps : 0, 1),
        p.max_streams > 0 ? 'at most ' + p.max_streams : '–', number(p.reused_streams)]));
  }

  // ---- generations

  function generations() {
    const node = section('Generations', 'Click a row to read it. All of them are also in generations.jsonl.');
    const filters = element(node, 'div', null, {class: 'filters'});
    const state = {verdict: '', phase: '', page: 0, words: '', truncated: false};
    const pageRows = 50;

    function choice(label, values, key) {
      const box = element(filters, 'label', label + ' ');
      const select = element(box, 'select');
      for (const [value, text] of values) element(select, 'option', text, {value: value});
      select.addEventListener('change', () => { state[key] = select.value; state.page = 0; draw(); });
    }
    choice('show', [['', 'all'], ['right', 'right'], ['wrong', 'not right'], ['different', 'wrong answer'],
                    ['no_answer', 'no answer'], ['too_hard', 'too hard to grade']], 'verdict');
    choice('of', [['', 'all modes and caps']].concat(summary.results.map((r) => [r.mode + ' ' + r.cap, phaseName(r)])), 'phase');
    const cut = element(element(filters, 'label', 'only truncated '), 'input', null, {type: 'checkbox'});
    cut.addEventListener('change', () => { state.truncated = cut.checked; state.page = 0; draw(); });
    const search = element(element(filters, 'label', 'search '), 'input', null, {type: 'search'});
    search.addEventListener('input', () => { state.words = search.value.toLowerCase(); state.page = 0; draw(); });
    const count = element(filters, 'span');
    const back = element(filters, 'button', '‹ back', {type: 'button'});
    const next = element(filters, 'button', 'next ›', {type: 'button'});
    back.addEventListener('click', () => { --state.page; draw(); });
    next.addEventListener('click', () => { ++state.page; draw(); });

    const table = element(element(node, 'div', null, {class: 'scroll'}), 'table', null, {id: 'rows'});
    const head = element(element(table, 'thead'), 'tr');
    for (const name of ['problem', '', 'mode', 'cap', 'run', 'verdict', 'answer', 'key', 'tokens', 'thoughts', 'end', 'verifier', 'switcher']) element(head, 'th', name);
    const body = element(table, 'tbody');

    function shown(row) {
      if (state.verdict === 'right' && row.verdict !== 'equal') return false;
      if (state.verdict === 'wrong' && row.verdict === 'equal') return false;
      if (state.verdict && state.verdict !== 'right' && state.verdict !== 'wrong' && row.verdict !== state.verdict) return false;
      if (state.phase && state.phase !== row.mode + ' ' + row.cap) return false;
      if (state.truncated && !row.truncated) return false;
      if (!state.words) return true;
      const problem = data.problems[row.p];
      return [problem.id, problem.problem, row.answer, row.text, row.reasoning].some((t) => t && t.toLowerCase().includes(state.words));
    }
    function detail(after, row) {
      const problem = data.problems[row.p];
      const cell = element(element(null, 'tr', null, {class: 'detail'}), 'td', null, {colspan: 13});
      const part = (title, text, name) => { element(cell, 'h4', title); element(cell, 'pre', text, name ? {class: name} : {}); };
      part('Problem ' + problem.id, problem.problem);
      part('Key', problem.answer);
      if (row.error) part('Error', row.error);
      if (row.text === null) {
        part('Response', '(the report is full; see generations.jsonl)');
      } else {
        if (row.reasoning) part('Thoughts', row.reasoning, 'thought');
        part('Response', row.text);
      }
      after.after(cell.parentNode);
    }
    function draw() {
      const rows = data.rows.filter(shown);
      const pages = Math.max(1, Math.ceil(rows.length / pageRows));
      state.page = Math.min(Math.max(state.page, 0), pages - 1);
      count.textContent = rows.length.toLocaleString('en') + ' generations, page ' + (state.page + 1) + ' of ' + pages;
      back.disabled = state.page === 0;
      next.disabled = state.page + 1 >= pages;
      body.replaceChildren();
      for (const row of rows.slice(state.page * pageRows, (state.page + 1) * pageRows)) {
        const problem = data.problems[row.p];
        const tr = element(body, 'tr', null, {class: 'row', tabindex: 0});
        element(tr, 'td', problem.id);
        element(tr, 'td', problem.problem, {class: 'problem'});
        element(tr, 'td', ways[row.mode] + (row.mode === 'auto' ? ' → ' + row.route : ''));
        element(tr, 'td', row.cap);
        element(tr, 'td', row.repeat + '/' + row.stream);
        element(tr, 'td', row.verdict.replace('_', ' '), {class: row.verdict});
        element(tr, 'td', row.answer === null ? '–' : row.answer, {class: 'short'});
        element(tr, 'td', problem.answer, {class: 'short'});
        element(tr, 'td', row.tokens);
        element(tr, 'td', row.reasoning_tokens);
        element(tr, 'td', row.finish + (row.forced ? ', forced' : '') + (row.truncated ? ', truncated' : ''));
        element(tr, 'td', row.verifier === null ? '–' : row.verifier.toFixed(3));
        element(tr, 'td', row.switcher === null ? '–' : row.switcher.toFixed(3));
        const toggle = () => {
          const open = tr.nextSibling && tr.nextSibling.classList.contains('detail');
          if (open) tr.nextSibling.remove(); else detail(tr, row);
        };
        tr.addEventListener('click', toggle);
        tr.addEventListener('keydown', (event) => { if (event.key === 'Enter') toggle(); });
      }
    }
    draw();
  }

  settings();
  results();
  cost();
  const plots = section('Plots', 'Bands: 95 % intervals; in vote curves one standard deviation over ' + summary.vote_curves.draws + ' draws of the stored streams.');
  const grid = element(plots, 'div', null, {class: 'charts'});
  accuracyByCap(grid);
  sweeps(grid);
  voteCurves(grid);
  histograms(grid);
  generations();
})();
