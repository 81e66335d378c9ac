// The traffic of the playground: requests in each of sixty steps, drawn by pointer or keyboard, or recorded.

import { h, set, svg } from './dom.js';
import { UserError, plural, t } from './language.js';

export const BINS = 60;
/** The maximum number of drawn requests per step. */
const MAX_PER_BIN = 12;
/** The maximum number of requests of one simulation. */
const MAX_ARRIVALS = 10000;
const [WIDTH, HEIGHT] = [600, 120];
const STEP = WIDTH / BINS;

const each = (draw) => Array.from({ length: BINS }, (_, bin) => draw(bin));

/** Shapes that show how algorithms differ. */
export const SHAPES = [
  [t('Two bursts'), () => each((bin) => ((bin >= 24 && bin < 28) || (bin >= 31 && bin < 35) ? 6 : 0))],
  [t('Steady'), () => each(() => 1)],
  [t('One burst'), () => each((bin) => (bin >= 10 && bin < 13 ? 12 : 0))],
  [t('Ramp'), () => each((bin) => Math.floor(bin / 8))],
  [t('On and off'), () => each((bin) => (Math.floor(bin / 8) % 2 === 0 ? 4 : 0))],
  [t('Nothing'), () => each(() => 0)],
];

/** The arrival times of drawn requests: evenly distributed within each step. */
export function arrivals(bins, span) {
  const step = span / BINS;
  return bins.flatMap((number, bin) =>
    Array.from({ length: number }, (_, place) => round((bin + (place + 0.5) / number) * step)),
  );
}

/** The number of `times` in each step. */
export function histogram(times, span) {
  const bins = each(() => 0);
  for (const time of times) bins[Math.min(BINS - 1, Math.floor((time / span) * BINS))] += 1;
  return bins;
}

/**
 * Parses times, one per line: seconds, ISO 8601 timestamps, or JSON with a member `time`. Returns seconds since the first,
 * sorted.
 */
export function parseRecording(text) {
  const lines = text.split(/[\n,]+(?![^{]*\})/).map((line) => line.trim());
  const times = [];
  for (const [place, line] of lines.entries()) {
    if (line === '') continue;
    const time = parseTime(line);
    if (!Number.isFinite(time))
      throw new UserError(
        t('Line {number} is not a time: “{text}”. Use seconds (12.5) or a timestamp (2026-11-16T03:20:00Z).', {
          number: place + 1,
          text: line.slice(0, 40),
        }),
      );
    times.push(time);
  }
  if (times.length === 0) throw new UserError(t('No time found. Paste one per line.'));
  if (times.length > MAX_ARRIVALS)
    throw new UserError(
      t('Too many times: {count}. At most {max} can be simulated.', { count: times.length, max: MAX_ARRIVALS }),
    );
  times.sort((a, b) => a - b);
  return times.map((time) => round(time - times[0]));
}

function parseTime(line) {
  if (line.startsWith('{')) {
    try {
      return parseTime(String(JSON.parse(line).time));
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

const LABEL = t(
  'Traffic, drawn. Left and right move in time, up and down change the number of requests, digits set it.',
);

/** A drawing area. Calls `changed(bins)` after each change. */
export class Drawing {
  #bins = each(() => 0);
  #at = 0;
  #span = 10;
  #lastPoint = null;
  #changed;
  #bars = each((bin) => svg('rect', { class: 'bin', x: bin * STEP + 1, width: STEP - 2, rx: 1.5 }));
  #mark = svg('rect', { class: 'at', y: 1, width: STEP, height: HEIGHT - 2 });

  constructor(changed) {
    this.#changed = changed;
    const frame = { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: 'none', focusable: 'false' };
    const picture = svg('svg', { ...frame, 'aria-hidden': 'true' }, this.#bars, this.#mark);
    const role = { role: 'slider', 'aria-label': LABEL, 'aria-valuemin': '0', 'aria-valuemax': String(MAX_PER_BIN) };
    const on = {
      pointerdown: (event) => {
        this.element.setPointerCapture(event.pointerId);
        this.#lastPoint = null;
        this.#stroke(event);
      },
      pointermove: (event) => {
        if (this.element.hasPointerCapture(event.pointerId)) this.#stroke(event);
      },
      keydown: (event) => this.#onKey(event),
    };
    this.element = h('div', { class: 'draw', tabindex: '0', ...role, on }, picture);
  }

  /** Shows `bins` over `span` seconds. */
  show(bins, span) {
    this.#bins = [...bins];
    this.#span = span;
    this.#draw();
  }

  #draw() {
    const max = Math.max(MAX_PER_BIN, ...this.#bins);
    this.#bars.forEach((bar, bin) => {
      const height = (this.#bins[bin] / max) * (HEIGHT - 6);
      set(bar, 'height', height);
      set(bar, 'y', HEIGHT - height);
    });
    set(this.#mark, 'x', this.#at * STEP);
    const count = this.#bins[this.#at];
    set(this.element, 'aria-valuenow', Math.min(MAX_PER_BIN, count));
    const at = { seconds: round((this.#at * this.#span) / BINS) };
    set(
      this.element,
      'aria-valuetext',
      plural('{count} request at {seconds} s', '{count} requests at {seconds} s', count, at),
    );
  }

  #setBin(bin, number) {
    this.#bins[bin] = Math.max(0, Math.min(MAX_PER_BIN, number));
  }

  /** A fast pointer skips steps; they are interpolated. */
  #stroke({ clientX, clientY }) {
    const box = this.element.getBoundingClientRect();
    const bin = Math.max(0, Math.min(BINS - 1, Math.floor(((clientX - box.left) / box.width) * BINS)));
    const to = { bin, number: Math.round((1 - (clientY - box.top) / box.height) * MAX_PER_BIN) };
    const from = this.#lastPoint ?? to;
    for (let at = Math.min(from.bin, to.bin); at <= Math.max(from.bin, to.bin); at += 1) {
      const part = from.bin === to.bin ? 1 : (at - from.bin) / (to.bin - from.bin);
      this.#setBin(at, Math.round(from.number + (to.number - from.number) * part));
    }
    this.#lastPoint = to;
    this.#at = to.bin;
    this.#draw();
    this.#changed(this.#bins);
  }

  #onKey(event) {
    const [at, count, last] = [this.#at, this.#bins[this.#at], BINS - 1];
    const moves = { ArrowLeft: at - 1, ArrowRight: at + 1, PageUp: at - 10, PageDown: at + 10, 'Home': 0, End: last };
    const heights = { ArrowUp: count + 1, ArrowDown: count - 1, Delete: 0, Backspace: 0 };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key in moves) this.#at = Math.max(0, Math.min(last, moves[event.key]));
    else if (event.key in heights) this.#setBin(at, heights[event.key]);
    else if (/^\d$/.test(event.key)) this.#setBin(at, Number(event.key));
    else return;
    event.preventDefault();
    this.#draw();
    if (!(event.key in moves)) this.#changed(this.#bins);
  }
}
