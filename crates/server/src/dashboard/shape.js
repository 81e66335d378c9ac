// Traffic as it is drawn: how many come in each of sixty steps of a span, by pointer or by keyboard, or as it was recorded.

import { h, say, set, svg } from './dom.js';

export const BINS = 60;
/** The most that can be drawn in a step. */
const MOST = 12;
/** The most that the gateway simulates at once. */
const ARRIVALS = 10000;
const [WIDTH, HEIGHT] = [600, 120];

const each = (draw) => Array.from({ length: BINS }, (_, bin) => draw(bin));

/** Shapes that show how algorithms differ. */
export const SHAPES = {
  'Two bursts': () => each((bin) => (bin >= 24 && bin < 28) || (bin >= 31 && bin < 35) ? 6 : 0),
  Steady: () => each(() => 1),
  'One burst': () => each((bin) => (bin >= 10 && bin < 13 ? 12 : 0)),
  Ramp: () => each((bin) => Math.floor(bin / 8)),
  'On and off': () => each((bin) => (Math.floor(bin / 8) % 2 === 0 ? 4 : 0)),
  Nothing: () => each(() => 0),
};

/** When those who are drawn come: evenly within each step. */
export function arrivals(bins, span) {
  const step = span / BINS;
  return bins.flatMap((number, bin) => Array.from({ length: number }, (_, place) => round((bin + (place + 0.5) / number) * step)));
}

/** How many of `times` are in each step. */
export function histogram(times, span) {
  const bins = each(() => 0);
  for (const time of times) bins[Math.min(BINS - 1, Math.floor((time / span) * BINS))] += 1;
  return bins;
}

/**
 * Moments from text, one in each line: seconds, times in ISO 8601, or JSON with a member `time`. Answers seconds since the
 * first, in order.
 */
export function recorded(text) {
  const lines = text.split(/[\n,]+(?![^{]*\})/).map((line) => line.trim());
  const times = [];
  for (const [place, line] of lines.entries()) {
    if (line === '') continue;
    const time = instant(line);
    if (!Number.isFinite(time)) throw new Error(`Line ${place + 1} is no moment: “${line.slice(0, 40)}”. Write seconds (12.5) or a time (2026-11-16T03:20:00Z).`);
    times.push(time);
  }
  if (times.length === 0) throw new Error('There is no moment in it. Paste one in each line.');
  if (times.length > ARRIVALS) throw new Error(`These are ${times.length} moments; at most ${ARRIVALS} can be simulated.`);
  times.sort((a, b) => a - b);
  return times.map((time) => round(time - times[0]));
}

function instant(line) {
  if (line.startsWith('{')) {
    try {
      return instant(String(JSON.parse(line).time));
    } catch {
      return NaN;
    }
  }
  const number = Number(line);
  if (!Number.isFinite(number)) return Date.parse(line) / 1000;
  // Seconds since 1970 have ten digits; with more they are in milliseconds or microseconds.
  return number > 1e14 ? number / 1e6 : number > 1e11 ? number / 1e3 : number;
}

const round = (time) => Math.round(time * 1e6) / 1e6;

/** A field to draw in. `changed(bins)` is told what was drawn. */
export function drawing(changed) {
  let bins = each(() => 0);
  let at = 0;
  let span = 10;
  let before = null;
  const bars = each((bin) => svg('rect', { class: 'bin', x: (bin * WIDTH) / BINS + 1, width: WIDTH / BINS - 2, rx: 1.5 }));
  const mark = svg('rect', { class: 'at', y: 1, width: WIDTH / BINS, height: HEIGHT - 2 });
  const element = h('div', {
    class: 'draw', tabindex: '0', role: 'slider', 'aria-label': 'Traffic, drawn. Left and right move in time, up and down change how many come, digits set it.',
    'aria-valuemin': '0', 'aria-valuemax': String(MOST),
  }, svg('svg', { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', focusable: 'false', 'aria-hidden': 'true' }, bars, mark));

  const show = () => {
    const most = Math.max(MOST, ...bins);
    bars.forEach((bar, bin) => {
      const height = (bins[bin] / most) * (HEIGHT - 6);
      set(bar, 'height', height);
      set(bar, 'y', HEIGHT - height);
    });
    set(mark, 'x', (at * WIDTH) / BINS);
    set(element, 'aria-valuenow', Math.min(MOST, bins[at]));
    set(element, 'aria-valuetext', `${bins[at]} come at ${round((at * span) / BINS)} s`);
  };
  const put = (bin, number) => {
    bins[bin] = Math.max(0, Math.min(MOST, number));
  };
  const pointed = (event) => {
    const box = element.getBoundingClientRect();
    const bin = Math.max(0, Math.min(BINS - 1, Math.floor(((event.clientX - box.left) / box.width) * BINS)));
    return { bin, number: Math.round((1 - (event.clientY - box.top) / box.height) * MOST) };
  };
  const stroke = (event) => {
    const to = pointed(event);
    const from = before ?? to;
    // A quick hand leaves steps out; they are filled in between.
    for (let bin = Math.min(from.bin, to.bin); bin <= Math.max(from.bin, to.bin); bin += 1) {
      const part = from.bin === to.bin ? 1 : (bin - from.bin) / (to.bin - from.bin);
      put(bin, Math.round(from.number + (to.number - from.number) * part));
    }
    before = to;
    at = to.bin;
    show();
    changed(bins);
  };
  element.addEventListener('pointerdown', (event) => {
    element.setPointerCapture(event.pointerId);
    before = null;
    stroke(event);
  });
  element.addEventListener('pointermove', (event) => {
    if (element.hasPointerCapture(event.pointerId)) stroke(event);
  });
  element.addEventListener('keydown', (event) => {
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, Home: 0, End: BINS - 1 };
    const heights = { ArrowUp: bins[at] + 1, ArrowDown: bins[at] - 1, Delete: 0, Backspace: 0 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) at = Math.max(0, Math.min(BINS - 1, moves[event.key]));
    else if (event.key in heights) put(at, heights[event.key]);
    else if (/^\d$/.test(event.key)) put(at, Number(event.key));
    else return;
    event.preventDefault();
    show();
    if (!(event.key in moves)) changed(bins);
  });
  return {
    element,
    set(drawn, over) {
      bins = [...drawn];
      span = over;
      show();
    },
  };
}
