// Compares the decisions of several quotas for the same traffic. The gateway simulates them without any effect.

import { getText } from '../api.js';
import { button, field, h, renderList, panel, setText, select, set } from '../dom.js';
import { duration } from '../format.js';
import { UserError, plural, t } from '../language.js';
import { quotaResult } from '../quota_result.js';
import { Drawing, SHAPES, arrivals, histogram, parseRecording } from '../shape.js';

const LEAD = t(
  'Draw the traffic of one client, and compare the decisions of several quotas. This has no effect on real requests.',
);
const SPANS = [
  ['10', t('10 seconds')],
  ['60', t('1 minute')],
  ['600', t('10 minutes')],
  ['3600', t('1 hour')],
];
const WAITS = [
  ['0', t('None')],
  ['0.5', t('0.5 seconds')],
  ['2', t('2 seconds')],
  ['10', t('10 seconds')],
];
const FIRST = ['20 per 5s', '20 per 5s fixed-window', '20 per 5s sliding-window', '4/s leaky-bucket queue 10'];
const ALL = [...FIRST, '20 per 5s sliding-strict 10', '20 per 5s sliding-log', '4/s smooth', '4/s warm-up 3s cold 3'];

/** Survives a change of the view. */
const state = {
  bins: SHAPES[0][1](),
  times: null,
  span: 10,
  wait: '0.5',
  quotas: FIRST.map((quota, id) => ({ id, quota })),
  next: 100,
};

export function playground({ root }) {
  const it = new Playground();
  root.append(h('h1', {}, t('Playground')), h('p', { class: 'lead' }, LEAD), it.traffic(), it.results());
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
    const shapes = SHAPES.map(([name, shape]) =>
      button(name, () => this.#use({ bins: shape(), times: null, span: this.#drawn }, 'redraw'), { class: 'small' }),
    );
    const settings = [field(t('Over'), this.#span), field(t('Maximum wait'), this.#wait)];
    const above = [h('div', { class: 'actions' }, shapes), h('div', { class: 'filters' }, settings)];
    const below = h('p', { class: 'axis' }, h('span', {}, duration(0)), this.#about, this.#end);
    return panel(
      t('Traffic'),
      h('div', { class: 'shapes' }, above),
      h('div', {}, this.#drawing.element, below),
      recording((times) => this.#record(times)),
    );
  }

  /** The panel of quotas, with one result each. */
  results() {
    const more = button(t('Add a quota'), () => {
      this.#compare([...state.quotas, newQuota('5/s burst 10')]);
      this.#results.lastElementChild.querySelector('input').select();
    });
    const every = button(t('Every algorithm'), () => this.#compare(ALL.map(newQuota)));
    const head = [h('h2', {}, t('Decisions')), h('div', { class: 'actions' }, more, every)];
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
      setText(this.#about, aboutText(times.length));
      setText(this.#end, duration(state.span));
      const options = { span: state.span, wait: Number(state.wait), signal: this.#request.signal };
      for (const { simulate } of this.#results.rendered.values()) simulate(times, options);
    }, 60);
  }
}

function aboutText(requests) {
  const span = { duration: duration(state.span) };
  return state.times
    ? plural(
        '{count} request in {duration}, at the recorded times.',
        '{count} requests in {duration}, at the recorded times.',
        requests,
        span,
      )
    : plural('{count} request in {duration}.', '{count} requests in {duration}.', requests, span);
}

function newQuota(quota) {
  return { id: state.next++, quota };
}

function legend() {
  return h(
    'p',
    { class: 'legend' },
    [
      ['admitted', t('Admitted')],
      ['delayed', t('Delayed, drawn when it proceeds')],
      ['denied', t('Denied')],
    ].map(([name, label]) => h('span', {}, h('i', { class: `key ${name}` }), label)),
    h('span', {}, t('— remaining')),
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
        throw new UserError(
          t('The history is empty. Set `observe: { history: 10000 }` in the policy to record requests.'),
        );
      use(parseRecording(lines));
    });
  const label = t('Times, one per line');
  const hint = t('Seconds, timestamps as in a log, or JSON lines with a member `time`.');
  const actions = [button(t('Use these'), pasted), button(t('Use the history of this gateway'), history)];
  const form = h('div', { class: 'form' }, field(label, area, hint), wrong, h('div', { class: 'actions' }, actions));
  return h('details', { class: 'numbers' }, h('summary', {}, t('Use recorded traffic')), form);
}
