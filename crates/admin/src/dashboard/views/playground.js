// Compares the decisions of several quotas for the same traffic. The gateway simulates them without any effect.

import { getText } from '../api.js';
import { button, field, h, renderList, panel, setText, select, set } from '../dom.js';
import { duration } from '../format.js';
import { quotaResult } from '../quota_result.js';
import { Drawing, SHAPES, arrivals, histogram, parseRecording } from '../shape.js';

const LEAD =
  'Draw the traffic of one client, and compare the decisions of several quotas. This has no effect on real requests.';
const SPANS = [
  ['10', '10 seconds'],
  ['60', '1 minute'],
  ['600', '10 minutes'],
  ['3600', '1 hour'],
];
const WAITS = [
  ['0', 'None'],
  ['0.5', '0.5 seconds'],
  ['2', '2 seconds'],
  ['10', '10 seconds'],
];
const FIRST = ['20 per 5s', '20 per 5s fixed-window', '20 per 5s sliding-window', '4/s leaky-bucket queue 10'];
const ALL = [...FIRST, '20 per 5s sliding-strict 10', '20 per 5s sliding-log', '4/s smooth', '4/s warm-up 3s cold 3'];

/** Survives a change of the view. */
const state = {
  bins: SHAPES['Two bursts'](),
  times: null,
  span: 10,
  wait: '0.5',
  quotas: FIRST.map((quota, id) => ({ id, quota })),
  next: 100,
};

export function playground({ root }) {
  const it = new Playground();
  root.append(h('h1', {}, 'Playground'), h('p', { class: 'lead' }, LEAD), it.traffic(), it.results());
  it.show();
  return { close: () => it.close() };
}

class Playground {
  #results = h('ul', { class: 'quota-results' });
  #about = h('span');
  #end = h('span');
  #span = select(SPANS, String(state.span));
  #wait = select(WAITS, state.wait);
  #drawing = new Drawing((bins) => this.#use({ bins, times: null }));
  #request = null;
  #soon = null;

  /** The panel to draw, choose or paste traffic. */
  traffic() {
    this.#span.addEventListener('change', () => this.#use({ times: null, span: this.#drawn }, 'redraw'));
    this.#wait.addEventListener('change', () => this.#use({ wait: this.#wait.value }));
    const shapes = Object.entries(SHAPES).map(([name, shape]) =>
      button(name, () => this.#use({ bins: shape(), times: null, span: this.#drawn }, 'redraw'), { class: 'small' }),
    );
    const settings = [field('Over', this.#span), field('Maximum wait', this.#wait)];
    const above = [h('div', { class: 'actions' }, shapes), h('div', { class: 'filters' }, settings)];
    const below = h('p', { class: 'axis' }, h('span', {}, '0 s'), this.#about, this.#end);
    return panel(
      'Traffic',
      h('div', { class: 'shapes' }, above),
      h('div', {}, this.#drawing.element, below),
      recording((times) => this.#record(times)),
    );
  }

  /** The panel of quotas, with one result each. */
  results() {
    const more = button('Add a quota', () => {
      this.#compare([...state.quotas, newQuota('5/s burst 10')]);
      this.#results.lastElementChild.querySelector('input').select();
    });
    const every = button('Every algorithm', () => this.#compare(ALL.map(newQuota)));
    const head = [h('h2', {}, 'Decisions'), h('div', { class: 'actions' }, more, every)];
    return h('section', { class: 'panel' }, h('div', { class: 'title' }, head), legend(), this.#results);
  }

  show() {
    this.#drawing.show(state.bins, state.span);
    const changed = () => this.#refresh();
    const create = (it) => quotaResult(it, { changed, remove: () => this.#remove(it) });
    renderList(this.#results, state.quotas, ({ id }) => id, create);
    for (const { setRemovable } of this.#results.rendered.values()) setRemovable(state.quotas.length > 1);
    this.#refresh();
  }

  close() {
    clearTimeout(this.#soon);
    this.#request?.abort();
  }

  /** The length of drawn traffic; recorded traffic may be longer. */
  get #drawn() {
    return Number(this.#span.value);
  }

  #use(changes, redraw) {
    Object.assign(state, changes);
    if (redraw) this.show();
    else this.#refresh();
  }

  #record(times) {
    const span = Math.max(1, Math.ceil(times.at(-1) * 1.02));
    this.#use({ times, span, bins: histogram(times, span) }, 'redraw');
  }

  #compare(quotas) {
    state.quotas = quotas;
    this.show();
  }

  #remove(it) {
    const place = state.quotas.indexOf(it);
    this.#compare(state.quotas.filter((other) => other !== it));
    this.#results.querySelectorAll('input')[Math.max(0, place - 1)]?.focus();
  }

  /** Simulates all quotas after a short delay, so that a stroke sends one request per quota. */
  #refresh() {
    clearTimeout(this.#soon);
    this.#soon = setTimeout(() => {
      this.#request?.abort();
      this.#request = new AbortController();
      const times = state.times ?? arrivals(state.bins, state.span);
      const how = state.times ? ', at the recorded times' : '';
      setText(this.#about, `${times.length} requests in ${duration(state.span)}${how}.`);
      setText(this.#end, duration(state.span));
      const options = { span: state.span, wait: Number(state.wait), signal: this.#request.signal };
      for (const { simulate } of this.#results.rendered.values()) simulate(times, options);
    }, 60);
  }
}

function newQuota(quota) {
  return { id: state.next++, quota };
}

function legend() {
  return h(
    'p',
    { class: 'legend' },
    [
      ['admitted', 'Admitted'],
      ['delayed', 'Delayed, drawn when it proceeds'],
      ['denied', 'Denied'],
    ].map(([name, label]) => h('span', {}, h('i', { class: `key ${name}` }), label)),
    h('span', {}, '— remaining'),
  );
}

/** Pasted times, or those in the history of the gateway. */
function recording(use) {
  const area = h('textarea', { rows: '5', spellcheck: 'false', placeholder: '0\n0.4\n2026-11-16T03:20:00Z' });
  const wrong = h('p', { class: 'wrong', role: 'alert' });
  const attempt = async (action) => {
    setText(wrong, '');
    try {
      await action();
    } catch (error) {
      setText(wrong, error.message);
    }
    set(area, 'aria-invalid', wrong.textContent ? 'true' : null);
  };
  const pasted = () => attempt(() => use(parseRecording(area.value)));
  const history = () =>
    attempt(async () => {
      const lines = (await getText('api/v1/history?limit=10000')).trim();
      if (lines === '')
        throw new Error(
          'The history is empty. Set `observe: { history: 10000 }` in the policy to record requests.',
        );
      use(parseRecording(lines));
    });
  const label = 'Times, one per line';
  const hint = 'Seconds, timestamps as in a log, or JSON lines with a member `time`.';
  const actions = [button('Use these', pasted), button('Use the history of this gateway', history)];
  const form = h('div', { class: 'form' }, field(label, area, hint), wrong, h('div', { class: 'actions' }, actions));
  return h('details', { class: 'numbers' }, h('summary', {}, 'Use recorded traffic'), form);
}
