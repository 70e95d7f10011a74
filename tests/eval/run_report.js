// node run_report.js report.html: runs the scripts of a report, chart library included, on a small stand-in for the
// browser, and prints what they drew. The canvas takes every call and draws nothing.
'use strict';
const fs = require('fs');
const vm = require('vm');

const html = fs.readFileSync(process.argv[2], 'utf8');
const scripts = [];
for (const match of html.matchAll(/<script([^>]*)>([\s\S]*?)<\/script>/g)) scripts.push({attributes: match[1], text: match[2]});
if (scripts.length !== 3) throw new Error('expected 3 scripts, found ' + scripts.length);

function contextOf(canvas) {
  const gradient = {addColorStop() {}};
  return new Proxy({canvas, measureText: (text) => ({width: 6 * String(text).length}), createLinearGradient: () => gradient}, {
    get: (target, name) => (name in target ? target[name] : () => undefined),
    set: (target, name, value) => { target[name] = value; return true; },
  });
}

class Node {
  constructor(tag) { this.tag = tag; this.children = []; this.attributes = {}; this.listeners = {}; this.parentNode = null; this.own = ''; this.style = {}; this.width = 600; this.height = 300; }
  get textContent() { return this.own + this.children.map((c) => c.textContent).join('\n'); }
  set textContent(text) { this.children = []; this.own = String(text); }
  setAttribute(name, value) { this.attributes[name] = String(value); if (name === 'value') this.value = String(value); }
  appendChild(child) { child.parentNode = this; this.children.push(child); return child; }
  replaceChildren() { this.children = []; }
  after(other) { const list = this.parentNode.children; list.splice(list.indexOf(this) + 1, 0, other); other.parentNode = this.parentNode; }
  remove() { const list = this.parentNode.children; list.splice(list.indexOf(this), 1); }
  get nextSibling() { const list = this.parentNode.children; return list[list.indexOf(this) + 1] || null; }
  get classList() { return {contains: (name) => (this.attributes.class || '').split(' ').includes(name)}; }
  addEventListener(name, listener) { this.listeners[name] = listener; }
  getContext() { return this.context || (this.context = contextOf(this)); }
  all(test) { return (test(this) ? [this] : []).concat(...this.children.map((c) => c.all(test))); }
}

const root = new Node('main');
const data = new Node('script');
data.textContent = scripts.find((s) => s.attributes.includes('application/json')).text;
const charts = [];
const sandbox = {
  console,
  document: {
    body: new Node('body'),
    getElementById: (id) => ({report: root, data: data})[id],
    createElement: (tag) => new Node(tag),
  },
  getComputedStyle: () => ({color: 'black'}),
};
vm.createContext(sandbox);
vm.runInContext(scripts[0].text, sandbox, {filename: 'chart library'});
const RealChart = sandbox.Chart;
sandbox.Chart = function (canvas, config) {
  for (const set of config.data.datasets) if (!Array.isArray(set.data)) throw new Error('a data set without data');
  const drawn = new RealChart(canvas, config);
  drawn.update();
  charts.push(canvas.attributes['aria-label']);
  return drawn;
};
sandbox.Chart.defaults = RealChart.defaults;
vm.runInContext(scripts[2].text, sandbox, {filename: 'report.js'});
const failed = root.all((n) => (n.attributes.class || '').includes('failed')).map((n) => n.textContent);

const shown = JSON.parse(data.textContent);
if (shown.metrics || shown.sqnr_db) {  // of a training or a quantization: nothing to click
  process.stdout.write(JSON.stringify({charts, failed, text: root.textContent}));
  process.exit(0);
}
const rowsNow = () => root.all((n) => n.tag === 'tr' && n.attributes.class === 'row');
const rows = rowsNow().length;
rowsNow()[0].listeners.click();
const detail = root.all((n) => n.attributes.class === 'detail').map((n) => n.textContent).join('\n');
rowsNow()[0].listeners.click();
const left = root.all((n) => n.attributes.class === 'detail').length;
if (left !== 0) throw new Error('a second click does not close the row');
const select = root.all((n) => n.tag === 'select')[0];
select.value = 'right';
select.listeners.change();
const tables = root.all((n) => n.attributes.class === 'numbers').map((n) => n.all((c) => c.tag === 'td').map((c) => c.textContent));
process.stdout.write(JSON.stringify({charts, failed, rows, rows_right: rowsNow().length, detail, tables}));
