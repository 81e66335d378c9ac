// Charts of rates and latencies over time. Each has a legend with numbers, and a table.

import { h, renderList, setText, set, svg } from './dom.js';
import { clock, duration, minute, rate } from './format.js';
import { t } from './language.js';

const WIDTH = 600;

/** A small chart without text; the caller shows the numbers. */
export function sparkline(live, names) {
  const plot = stack(live, names, 60);
  const element = h('div', { class: 'spark', 'aria-hidden': 'true' }, plot.element);
  return { element, draw: (series) => plot.draw(series, peak(series)) };
}

/** Rates per second, as stacked areas. */
const RATES = {
  format: (value) => t('{rate}/s', { rate: rate(value) }),
  value: rate,
  header: (label) => t('{label}/s', { label }),
  basis: t('per second'),
  plot: stack,
  peak,
};
/** Latencies, as lines. */
const LATENCIES = {
  format: duration,
  value: duration,
  header: (label) => label,
  basis: t('in the last ten seconds'),
  plot: lines,
  peak: (series) => roundUp(Math.max(0.001, ...series.flatMap(({ values }) => values))),
};

/** A chart of the percentiles of a latency. */
export function latencyChart(live, title) {
  return chart(live, title, ['p50', 'p95', 'p99'].map((name) => ({ name, label: name })), LATENCIES);
}

/** A chart with a scale, a legend with the values at the cursor, and a table. */
export function chart(live, title, kinds, style = RATES) {
  const names = kinds.map(({ name }) => name);
  const past = h('span', { class: 'scale-past' });
  const ticks = h('div');
  const plot = style.plot(live, names, 180);
  const max = h('span', { class: 'scale-max' });
  const half = h('span', { class: 'scale-half' });
  const line = h('div', { class: 'cursor', hidden: true });
  const values = kinds.map(() => h('b', {}, '–'));
  const when = h('span', { class: 'when' });
  const legend = h(
    'p',
    { class: 'legend' },
    kinds.map(({ name, label }, place) => h('span', {}, h('i', { class: `key ${name}` }), label, ' ', values[place])),
    when,
  );
  const frame = h(
    'div',
    { class: 'frame', 'aria-hidden': 'true' },
    plot.element,
    max,
    half,
    line,
    ticks,
    past,
    h('span', { class: 'scale-now' }, t('now')),
  );
  const numbers = dataTable(title, kinds, style);
  const element = h(
    'figure',
    { class: 'chart' },
    h('figcaption', { class: 'visually-hidden' }, title),
    legend,
    frame,
    numbers.element,
  );

  let shown = [];
  let hovered = null;
  const updateLegend = () => {
    const point = hovered ?? shown.at(-1);
    values.forEach((element, place) => setText(element, point ? style.format(point.values[place]) : '–'));
    setText(when, hovered ? t('at {time}', { time: clock(hovered.time * 1000) }) : style.basis);
  };
  frame.addEventListener('pointermove', (event) => {
    const box = frame.getBoundingClientRect();
    const time = live.now - live.window * (1 - (event.clientX - box.left) / box.width);
    hovered = shown.reduce(
      (best, point) => (!best || Math.abs(point.time - time) < Math.abs(best.time - time) ? point : best),
      null,
    );
    line.hidden = !hovered;
    line.style.left = `${event.clientX - box.left}px`;
    updateLegend();
  });
  frame.addEventListener('pointerleave', () => {
    hovered = null;
    line.hidden = true;
    updateLegend();
  });

  return {
    element,
    draw(series) {
      shown = series;
      const top = style.peak(series);
      plot.draw(series, top);
      setText(past, t('{count} min ago', { count: live.window / 60 }));
      renderList(ticks, tickTimes(live), String, (time) => tick(live, time));
      setText(max, style.format(top));
      setText(half, style.format(top / 2));
      updateLegend();
      numbers.draw(series, live.now);
    },
  };
}

/** The seconds between the ticks of a chart of this length. */
const TICK_STEPS = { 60: 15, 300: 60, 900: 180, 3600: 600 };

/** Round times that do not overlap the ends of the scale. */
function tickTimes({ now, window }) {
  const step = TICK_STEPS[window] ?? window / 5;
  const first = Math.ceil((now - window * 0.88) / step) * step;
  return Array.from({ length: 6 }, (_, place) => first + place * step).filter((time) => time < now - window * 0.08);
}

function tick(live, time) {
  const element = h('span', { class: 'tick' });
  return {
    element,
    update: () => {
      setText(element, live.window > 60 ? minute(time * 1000) : clock(time * 1000));
      element.style.left = `${100 * (1 - (live.now - time) / live.window)}%`;
    },
  };
}

/** Lines; a missing value interrupts its line. */
function lines(live, names, height) {
  const paths = names.map((name) => svg('path', { class: `line ${name}` }));
  const element = svg(
    'svg',
    { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: 'none', focusable: 'false' },
    gridLines(height),
    paths,
  );
  const draw = (series, top) => {
    const { now, window } = live;
    const x = (time) => Math.round(WIDTH * (1 - (now - time) / window) * 10) / 10;
    const y = (value) => Math.round((1 - value / top) * (height - 1) * 10) / 10 + 1;
    paths.forEach((path, place) => {
      let isDrawing = false;
      const steps = series.map(({ time, values }) => {
        const value = values[place];
        const command = value === null ? '' : isDrawing ? `L${x(time)} ${y(value)}` : `M${x(time)} ${y(value)}h0`;
        isDrawing = value !== null;
        return command;
      });
      set(path, 'd', steps.join('') || 'M0 0');
    });
  };
  return { element, draw };
}

function gridLines(height) {
  return [0, 0.5].map((part) =>
    svg('line', { class: 'grid', x1: 0, x2: WIDTH, y1: height * part + 0.5, y2: height * part + 0.5 }),
  );
}

/** Stacked areas. */
function stack(live, names, height) {
  const areas = names.map((name) => svg('path', { class: `area ${name}` }));
  const element = svg(
    'svg',
    { viewBox: `0 0 ${WIDTH} ${height}`, preserveAspectRatio: 'none', focusable: 'false' },
    gridLines(height),
    areas,
  );
  const draw = (series, top) => {
    const { now, window } = live;
    const x = (time) => Math.round(WIDTH * (1 - (now - time) / window) * 10) / 10;
    const y = (value) => Math.round((1 - value / top) * (height - 1) * 10) / 10 + 1;
    const floor = series.map(() => 0);
    areas.forEach((area, place) => {
      const bottom = series.map(({ time }, at) => `${x(time)} ${y(floor[at])}`).reverse();
      const upper = series.map(({ time, values }, at) => `${x(time)} ${y((floor[at] += values[place]))}`);
      const any = series.some(({ values }) => values[place] > 0);
      set(area, 'd', any ? `M${upper.join('L')}L${bottom.join('L')}Z` : 'M0 0');
    });
  };
  return { element, draw };
}

/** The top of the scale: a round number above all values. */
export function peak(series) {
  const max = Math.max(0, ...series.map(({ values }) => values.reduce((sum, value) => sum + value, 0)));
  return max <= 1 ? 1 : roundUp(max);
}

function roundUp(max) {
  const size = 10 ** Math.floor(Math.log10(max));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * size).find((step) => step >= max);
}

/** The means of every ten seconds, newest first; updated while it is open. */
function dataTable(title, kinds, style) {
  const body = h('tbody');
  const head = h(
    'tr',
    {},
    h('th', { scope: 'col' }, t('Ten seconds until')),
    kinds.map(({ label }) => h('th', { scope: 'col', class: 'number' }, style.header(label))),
  );
  const element = h(
    'details',
    { class: 'numbers' },
    h('summary', {}, t('Numbers as a table')),
    h(
      'div',
      { class: 'scroll', tabindex: '0', role: 'region', 'aria-label': t('{title}, as a table', { title }) },
      h('table', {}, h('caption', { class: 'visually-hidden' }, title), h('thead', {}, head), body),
    ),
  );
  let drawn = null;
  const draw = (series, now) => {
    const step = Math.floor(now / 10);
    if (!element.open || step === drawn) return;
    drawn = step;
    body.replaceChildren(
      ...means(series).map(({ until, values }) =>
        h(
          'tr',
          {},
          h('th', { scope: 'row' }, clock(until * 1000)),
          values.map((value) => h('td', { class: 'number' }, style.value(value))),
        ),
      ),
    );
  };
  let last = null;
  element.addEventListener('toggle', () => {
    drawn = null;
    if (last) draw(...last);
  });
  return {
    element,
    draw(series, now) {
      last = [series, now];
      draw(series, now);
    },
  };
}

function means(series) {
  const groups = Map.groupBy?.(series, ({ time }) => Math.floor(time / 10)) ?? group(series);
  return [...groups].reverse().map(([ten, points]) => ({
    until: (ten + 1) * 10,
    values: points[0].values.map((_, place) => mean(points.map(({ values }) => values[place]))),
  }));
}

function mean(values) {
  const known = values.filter((value) => value !== null);
  return known.length === 0 ? null : known.reduce((sum, value) => sum + value, 0) / known.length;
}

function group(series) {
  const groups = new Map();
  for (const point of series) {
    const ten = Math.floor(point.time / 10);
    groups.set(ten, [...(groups.get(ten) ?? []), point]);
  }
  return groups;
}
