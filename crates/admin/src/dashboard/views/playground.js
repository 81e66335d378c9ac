// How algorithms treat the same traffic, side by side. The gateway decides, as it does for requests; nothing is counted.

import { text } from '../api.js';
import { button, field, h, keyed, panel, say, select, set } from '../dom.js';
import { length } from '../format.js';
import { lane } from '../lane.js';
import { Drawing, SHAPES, arrivals, histogram, recorded } from '../shape.js';

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
  #lanes = h('ul', { class: 'lanes' });
  #about = h('span');
  #end = h('span');
  #span = select(SPANS, String(state.span));
  #wait = select(WAITS, state.wait);
  #drawing = new Drawing((bins) => this.#use({ bins, times: null }));
  #asked = null;
  #soon = null;

  /** Where traffic is drawn, chosen or pasted. */
  traffic() {
    this.#span.addEventListener('change', () => this.#use({ times: null, span: this.#drawn }, 'anew'));
    this.#wait.addEventListener('change', () => this.#use({ wait: this.#wait.value }));
    const shapes = Object.entries(SHAPES).map(([name, shape]) =>
      button(name, () => this.#use({ bins: shape(), times: null, span: this.#drawn }, 'anew'), { class: 'small' }),
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
      this.#compare([...state.quotas, named('5/s burst 10')]);
      this.#lanes.lastElementChild.querySelector('input').select();
    });
    const every = button('Every algorithm', () => this.#compare(ALL.map(named)));
    const head = [h('h2', {}, 'What quotas say'), h('div', { class: 'actions' }, more, every)];
    return h('section', { class: 'panel' }, h('div', { class: 'title' }, head), legend(), this.#lanes);
  }

  show() {
    this.#drawing.show(state.bins, state.span);
    const changed = () => this.#refresh();
    const create = (it) => lane(it, { changed, remove: () => this.#remove(it) });
    keyed(this.#lanes, state.quotas, ({ id }) => id, create);
    for (const { removable } of this.#lanes.keyed.values()) removable(state.quotas.length > 1);
    this.#refresh();
  }

  close() {
    clearTimeout(this.#soon);
    this.#asked?.abort();
  }

  /** How long is drawn; what was recorded may be longer. */
  get #drawn() {
    return Number(this.#span.value);
  }

  #use(changes, anew) {
    Object.assign(state, changes);
    if (anew) this.show();
    else this.#refresh();
  }

  #record(times) {
    const span = Math.max(1, Math.ceil(times.at(-1) * 1.02));
    this.#use({ times, span, bins: histogram(times, span) }, 'anew');
  }

  #compare(quotas) {
    state.quotas = quotas;
    this.show();
  }

  #remove(it) {
    const place = state.quotas.indexOf(it);
    this.#compare(state.quotas.filter((other) => other !== it));
    this.#lanes.querySelectorAll('input')[Math.max(0, place - 1)]?.focus();
  }

  /** Asks for all lanes, when the hand rests. */
  #refresh() {
    clearTimeout(this.#soon);
    this.#soon = setTimeout(() => {
      this.#asked?.abort();
      this.#asked = new AbortController();
      const times = state.times ?? arrivals(state.bins, state.span);
      const how = state.times ? ', at the moments that were recorded' : '';
      say(this.#about, `${times.length} come in ${length(state.span)}${how}.`);
      say(this.#end, length(state.span));
      const options = { span: state.span, wait: Number(state.wait), signal: this.#asked.signal };
      for (const { simulate } of this.#lanes.keyed.values()) simulate(times, options);
    }, 60);
  }
}

function named(quota) {
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
    say(wrong, '');
    try {
      await action();
    } catch (error) {
      say(wrong, error.message);
    }
    set(area, 'aria-invalid', wrong.textContent ? 'true' : null);
  };
  const pasted = () => attempt(() => use(recorded(area.value)));
  const history = () =>
    attempt(async () => {
      const lines = (await text('api/v1/history?limit=10000')).trim();
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
