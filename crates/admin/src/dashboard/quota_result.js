// One quota of the playground: its text, and its decisions for the traffic.

import { request } from './api.js';
import { field, h, inlineCode, setText, set, svg } from './dom.js';
import { count, duration } from './format.js';
import { t } from './language.js';
import { BINS } from './shape.js';

const [WIDTH, HEIGHT] = [600, 90];
const KINDS = ['admitted', 'delayed', 'denied'];

export function quotaResult(it, { changed, remove }) {
  const input = h('input', { type: 'text', value: it.quota, autocomplete: 'off', spellcheck: 'false', class: 'mono' });
  const removeButton = h(
    'button',
    { type: 'button', class: 'small', on: { click: remove } },
    t('Remove'),
    h('span', { class: 'visually-hidden' }, ` ${it.quota}`),
  );
  const wrong = h('p', { class: 'wrong', role: 'status' });
  const summary = h('p', { class: 'quota-summary' });
  const bars = svg('g');
  const level = svg('path', { class: 'level' });
  const body = h('tbody');
  const numbers = h('details', { class: 'numbers' }, h('summary', {}, t('Numbers as a table')), frame(body));
  let last = null;
  input.addEventListener('input', () => {
    it.quota = input.value;
    changed();
  });
  numbers.addEventListener('toggle', () => last && numbers.open && body.replaceChildren(...rows(last)));

  const show = (result, span) => {
    last = { bins: countByBin(result.decisions, span), span };
    draw(bars, level, last.bins, result.decisions, span);
    const max = maxInWindow(result.decisions, span / 10);
    const values = { admitted: count(result.admitted), delayed: count(result.delayed), denied: count(result.denied) };
    const most = { max: count(max), duration: duration(span / 10) };
    const text = t(
      '*{admitted}* admitted, *{delayed}* delayed, *{denied}* denied. At most {max} proceeded in any {duration}.',
      { ...values, ...most },
    );
    summary.replaceChildren(
      ...result.quotas.slice(0, 1).map(({ algorithm }) => `${algorithm}: `),
      inlineCode(text, '*', 'b'),
    );
    if (numbers.open) body.replaceChildren(...rows(last));
  };
  return {
    element: h(
      'li',
      {},
      h('div', { class: 'quota-head' }, field(t('Quota'), input), removeButton),
      wrong,
      h(
        'div',
        { class: 'quota-chart', 'aria-hidden': 'true' },
        svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', focusable: 'false' }, bars, level),
      ),
      summary,
      numbers,
    ),
    setRemovable: (may) => {
      removeButton.hidden = !may;
    },
    async simulate(times, { span, wait, signal }) {
      try {
        const result = await (
          await request('POST', 'api/v1/simulate', {
            signal,
            body: { quota: it.quota, arrivals: times, ...(wait > 0 ? { wait } : {}) },
          })
        ).json();
        setText(wrong, '');
        set(input, 'aria-invalid', null);
        show(result, span);
      } catch (error) {
        if (error.name === 'AbortError') return;
        setText(wrong, error.message);
        set(input, 'aria-invalid', 'true');
      }
    },
  };
}

/** The number of each outcome per step; delayed requests count in the step in which they proceed. */
function countByBin(decisions, span) {
  const bins = Array.from({ length: BINS }, () => ({ admitted: 0, delayed: 0, denied: 0, left: null }));
  for (const { at, wait, outcome, remaining } of decisions) {
    const bin = bins[Math.min(BINS - 1, Math.floor(((at + (wait ?? 0)) / span) * BINS))];
    bin[outcome] += 1;
    bin.left = remaining;
  }
  return bins;
}

function draw(bars, level, bins, decisions, span) {
  const max = Math.max(6, ...bins.map((bin) => bin.admitted + bin.delayed + bin.denied));
  const step = WIDTH / BINS;
  bars.replaceChildren(
    ...bins.flatMap((bin, place) => {
      let floor = HEIGHT;
      return KINDS.filter((kind) => bin[kind] > 0).map((kind) => {
        const height = (bin[kind] / max) * (HEIGHT - 4);
        floor -= height;
        return svg('rect', { class: `bin ${kind}`, x: place * step + 1, width: step - 2, y: floor, height });
      });
    }),
  );
  const limit = Math.max(1, ...decisions.map((decision) => decision.limit ?? 0));
  const y = (remaining) => Math.round((1 - Math.min(1, remaining / limit)) * (HEIGHT - 3)) + 1.5;
  let path = '';
  for (const { at, remaining } of decisions) {
    const x = Math.round((at / span) * WIDTH * 10) / 10;
    path += path === '' ? `M${x} ${y(remaining)}` : `H${x}V${y(remaining)}`;
  }
  set(level, 'd', path || 'M0 0');
}

/** The maximum number of requests that proceed within any interval of this length. */
function maxInWindow(decisions, length) {
  const passed = decisions
    .filter(({ outcome }) => outcome !== 'denied')
    .map(({ at, wait }) => at + (wait ?? 0))
    .sort((a, b) => a - b);
  let first = 0;
  return passed.reduce((max, time, last) => {
    while (passed[first] <= time - length) first += 1;
    return Math.max(max, last - first + 1);
  }, 0);
}

function frame(body) {
  const head = h(
    'tr',
    {},
    h('th', { scope: 'col' }, t('From')),
    [t('Admitted'), t('Delayed'), t('Denied'), t('Remaining')].map((name) => h('th', { scope: 'col', class: 'number' }, name)),
  );
  return h(
    'div',
    { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('Decisions per step') },
    h('table', {}, h('caption', { class: 'visually-hidden' }, t('Decisions per step')), h('thead', {}, head), body),
  );
}

function rows({ bins, span }) {
  return bins.flatMap((bin, place) =>
    bin.left === null
      ? []
      : [
          h(
            'tr',
            {},
            h('th', { scope: 'row' }, duration((place * span) / BINS)),
            KINDS.map((kind) => h('td', { class: 'number' }, count(bin[kind]))),
            h('td', { class: 'number' }, count(bin.left)),
          ),
        ],
  );
}
