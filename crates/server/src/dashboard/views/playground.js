// How algorithms treat the same traffic, side by side. The gateway decides, as it does for requests; nothing is counted.

import { text } from '../api.js';
import { field, h, keyed, panel, say, select, set } from '../dom.js';
import { length } from '../format.js';
import { lane } from '../lane.js';
import { SHAPES, arrivals, drawing, histogram, recorded } from '../shape.js';

const SPANS = [['10', '10 seconds'], ['60', '1 minute'], ['600', '10 minutes'], ['3600', '1 hour']];
const WAITS = [['0', 'Nobody waits'], ['0.5', 'Half a second'], ['2', '2 seconds'], ['10', '10 seconds']];
const FIRST = ['20 per 5s', '20 per 5s fixed-window', '20 per 5s sliding-window', '4/s leaky-bucket queue 10'];
const ALL = [...FIRST, '20 per 5s sliding-strict 10', '20 per 5s sliding-log', '4/s smooth', '4/s warm-up 3s cold 3'];

/** What was drawn stays when another view is looked at. */
const state = { bins: SHAPES['Two bursts'](), times: null, span: 10, wait: '0.5', quotas: FIRST.map((quota, id) => ({ id, quota })), next: 100 };

export function playground({ root }) {
  const lanes = h('ul', { class: 'lanes' });
  const start = h('span');
  const end = h('span');
  const about = h('span');
  const span = select(SPANS, String(state.span));
  const wait = select(WAITS, state.wait);
  let asked = null;
  let soon = null;

  const times = () => state.times ?? arrivals(state.bins, state.span);
  const refresh = () => {
    clearTimeout(soon);
    soon = setTimeout(() => {
      asked?.abort();
      asked = new AbortController();
      const come = times();
      say(about, `${come.length} come in ${length(state.span)}${state.times ? ', at the moments that were recorded' : ''}.`);
      say(start, '0 s');
      say(end, length(state.span));
      for (const { simulate } of lanes.keyed?.values() ?? []) simulate(come, { span: state.span, wait: Number(state.wait), signal: asked.signal });
    }, 60);
  };
  const field_ = drawing((bins) => {
    state.bins = bins;
    state.times = null;
    refresh();
  });
  const show = () => {
    field_.set(state.bins, state.span);
    keyed(lanes, state.quotas, ({ id }) => id, (it) => lane(it, { changed: refresh, remove: () => remove(it) }));
    for (const { removable } of lanes.keyed.values()) removable(state.quotas.length > 1);
    refresh();
  };
  const remove = (it) => {
    const place = state.quotas.indexOf(it);
    state.quotas.splice(place, 1);
    show();
    lanes.querySelectorAll('input')[Math.max(0, place - 1)]?.focus();
  };
  const add = (quotas) => {
    state.quotas = quotas;
    show();
  };
  span.addEventListener('change', () => {
    state.span = Number(span.value);
    state.times = null;
    show();
  });
  wait.addEventListener('change', () => {
    state.wait = wait.value;
    refresh();
  });
  const shapes = Object.entries(SHAPES).map(([name, shape]) => h('button', { type: 'button', class: 'small', on: { click: () => {
    Object.assign(state, { bins: shape(), times: null, span: Number(span.value) });
    show();
  } } }, name));
  const use = (moments) => {
    const long = Math.max(1, Math.ceil((moments.at(-1) ?? 0) * 1.02));
    Object.assign(state, { times: moments, span: long, bins: histogram(moments, long) });
    show();
  };
  const more = h('button', { type: 'button', on: { click: () => {
    add([...state.quotas, { id: state.next++, quota: '5/s burst 10' }]);
    lanes.lastElementChild.querySelector('input').select();
  } } }, 'Add a quota');
  const every = h('button', { type: 'button', on: { click: () => add(ALL.map((quota) => ({ id: state.next++, quota }))) } }, 'Every algorithm');

  root.append(h('h1', {}, 'Playground'),
    h('p', { class: 'lead' }, 'Draw traffic of one client, and see what each quota says to it. Nothing is counted, and nobody is denied.'),
    panel('Traffic', h('div', { class: 'shapes' }, h('div', { class: 'actions' }, shapes), h('div', { class: 'filters' }, field('Over', span), field('Where it is delayed', wait))),
      h('div', {}, field_.element, h('p', { class: 'axis' }, start, about, end)), recording(use)),
    h('section', { class: 'panel' }, h('div', { class: 'title' }, h('h2', {}, 'What quotas say'), h('div', { class: 'actions' }, more, every)), legend(), lanes));
  show();
  return { close: () => asked?.abort() };
}

function legend() {
  return h('p', { class: 'legend' }, [['admitted', 'Admitted'], ['delayed', 'Delayed, drawn when it goes on'], ['denied', 'Denied']].map(([name, label]) => h('span', {}, h('i', { class: `key ${name}` }), label)), h('span', {}, '— what is left'));
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
  const history = () => attempt(async () => {
    const lines = (await text('api/v1/history?limit=10000')).trim();
    if (lines === '') throw new Error('The gateway keeps no history, or nothing has come yet. Say `observe: { history: 10000 }` in the policy.');
    use(recorded(lines));
  });
  return h('details', { class: 'numbers' }, h('summary', {}, 'Use recorded traffic'), h('div', { class: 'form' },
    field('Moments, one in each line', area, 'Seconds, or times as in a log; JSON lines with a member `time` will do.'), wrong,
    h('div', { class: 'actions' }, h('button', { type: 'button', on: { click: pasted } }, 'Use these'), h('button', { type: 'button', on: { click: history } }, 'Use what came to this gateway'))));
}
