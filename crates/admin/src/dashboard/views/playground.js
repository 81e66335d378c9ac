// How algorithms treat the same traffic, side by side. The gateway decides, as it does for requests; nothing is counted.

import { getText } from '../api.js';
import { button, field, h, renderList, panel, setText, select, set } from '../dom.js';
import { duration } from '../format.js';
import { quotaResult } from '../quota_result.js';
import { Drawing, SHAPES, arrivals, histogram, parseRecording } from '../shape.js';

const LEAD =
  'Draw traffic of one client, and see what each quota says to it. Nothing is counted, and nobody is denied.';
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

/** What was drawn stays when another view is looked at. */
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
  root.append(h('h1', {}, 'Playground'), h('p', { class: 'lead' }, LEAD), it.traffic(), it.answers());
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

  /** Where traffic is drawn, chosen or pasted. */
  traffic() {
    this.#span.addEventListener('change', () => this.#use({ times: null, span: this.#drawn }, 'redraw'));
    this.#wait.addEventListener('change', () => this.#use({ wait: this.#wait.value }));
    const shapes = Object.entries(SHAPES).map(([name, shape]) =>
      button(name, () => this.#use({ bins: shape(), times: null, span: this.#drawn }, 'redraw'), { class: 'small' }),
    );
    const settings = [field('Over', this.#span), field('Longest wait', this.#wait)];
    const above = [h('div', { class: 'actions' }, shapes), h('div', { class: 'filters' }, settings)];
    const below = h('p', { class: 'axis' }, h('span', {}, '0 s'), this.#about, this.#end);
    return panel(
      'Traffic',
      h('div', { class: 'shapes' }, above),
      h('div', {}, this.#drawing.element, below),
      recording((times) => this.#record(times)),
    );
  }

  /** What quotas say, each in a lane of its own. */
  answers() {
    const more = button('Add a quota', () => {
      this.#compare([...state.quotas, newQuota('5/s burst 10')]);
      this.#results.lastElementChild.querySelector('input').select();
    });
    const every = button('Every algorithm', () => this.#compare(ALL.map(newQuota)));
    const head = [h('h2', {}, 'What quotas say'), h('div', { class: 'actions' }, more, every)];
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

  /** How long is drawn; what was recorded may be longer. */
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

  /** Asks for all lanes, when the hand rests. */
  #refresh() {
    clearTimeout(this.#soon);
    this.#soon = setTimeout(() => {
      this.#request?.abort();
      this.#request = new AbortController();
      const times = state.times ?? arrivals(state.bins, state.span);
      const how = state.times ? ', at the moments that were recorded' : '';
      setText(this.#about, `${times.length} come in ${duration(state.span)}${how}.`);
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
      ['delayed', 'Delayed, drawn when it goes on'],
      ['denied', 'Denied'],
    ].map(([name, label]) => h('span', {}, h('i', { class: `key ${name}` }), label)),
    h('span', {}, '— what is left'),
  );
}

/** Moments that are pasted, or those of the gateway's own history. */
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
          'The gateway keeps no history, or nothing has come yet. Say `observe: { history: 10000 }` in the policy.',
        );
      use(recorded(lines));
    });
  const label = 'Moments, one in each line';
  const hint = 'Seconds, or times as in a log; JSON lines with a member `time` will do.';
  const actions = [button('Use these', pasted), button('Use what came to this gateway', history)];
  const form = h('div', { class: 'form' }, field(label, area, hint), wrong, h('div', { class: 'actions' }, actions));
  return h('details', { class: 'numbers' }, h('summary', {}, 'Use recorded traffic'), form);
}
