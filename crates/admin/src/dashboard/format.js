// Formats numbers, times and states for display. Both languages write plain numbers and times of day alike.

import { LocalizedText, join, t } from './language.js';

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat('en', { minimumFractionDigits: 1, maximumFractionDigits: 1 });

/** 1234567 as `1,234,567`. */
export function count(number) {
  return number === null || number === undefined ? '–' : whole.format(number);
}

/** 1234567 as `1.2M`, for narrow columns. */
export function brief(number) {
  const style = { notation: 'compact', maximumFractionDigits: 1 };
  return number < 10000
    ? count(number)
    : new LocalizedText((language) => new Intl.NumberFormat(language, style).format(number));
}

/** A rate per second, without the unit. */
export function rate(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return '–';
  if (number === 0) return '0';
  if (number < 0.05) return '<0.1';
  if (number < 100) return tenth.format(number);
  return brief(Math.round(number));
}

/** 0.123 as `12.3 %`. */
export function share(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return '–';
  return percent(number > 0 && number < 0.001 ? '<0.1' : tenth.format(number * 100));
}

/** A formatted number of percent. */
export function percent(number) {
  return t('{number}\u00a0%', { number });
}

/** A factor of quotas: 0.512 as `x0.512`. */
export function factor(number) {
  return `x${Number(number.toFixed(3))}`;
}

/** The units of durations, which stay on the line of their number. */
const UNITS = {
  d: (number) => t('{number}\u00a0d', { number }),
  h: (number) => t('{number}\u00a0h', { number }),
  min: (number) => t('{number}\u00a0min', { number }),
  s: (number) => t('{number}\u00a0s', { number }),
};

/** Seconds as a duration: `480 ns`, `1.2 ms`, `48.2 s`, `3 min 20 s`, `2 d 4 h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds === 0) return UNITS.s(0);
  for (const [unit, size] of [
    ['ns', 1e-9],
    ['µs', 1e-6],
    ['ms', 1e-3],
  ]) {
    if (seconds < size * 999.5) return `${digits(seconds / size)}\u00a0${unit}`;
  }
  if (seconds < 60) return UNITS.s(digits(seconds));
  const total = Math.round(seconds);
  const units = [
    [UNITS.d, 86400],
    [UNITS.h, 3600],
    [UNITS.min, 60],
    [UNITS.s, 1],
  ];
  const first = units.findIndex(([, size]) => total >= size);
  const { texts } = units.slice(first, first + 2).reduce(
    ({ rest, texts }, [unit, size]) => {
      const number = Math.floor(rest / size);
      return { rest: rest - number * size, texts: number > 0 ? [...texts, unit(number)] : texts };
    },
    { rest: total, texts: [] },
  );
  return join(texts, ' ');
}

function digits(number) {
  return number < 10
    ? String(Number(number.toPrecision(2)))
    : number < 100
      ? String(Number(number.toPrecision(3)))
      : whole.format(number);
}

/** Bytes as `4.2 MB`. */
export function bytes(number) {
  for (const [unit, size] of [
    ['GB', 1e9],
    ['MB', 1e6],
    ['kB', 1e3],
  ]) {
    if (number >= size) return `${digits(number / size)}\u00a0${unit}`;
  }
  return `${count(number)} B`;
}

/** The local time of day. */
export function clock(time) {
  return new Date(time).toLocaleTimeString('en-GB');
}

/** The local time of day, without seconds. */
export function minute(time) {
  return clock(time).slice(0, 5);
}

/** The local date and time. */
export function dateTime(time) {
  const date = new Date(time);
  return `${date.toLocaleDateString('en-CA')} ${date.toLocaleTimeString('en-GB')}`;
}

/** The states and results of the API that are words, not names of the policy. */
const WORDS = {
  all: t('all'),
  on: t('on'),
  off: t('off'),
  enforce: t('enforce'),
  shadow: t('shadow'),
  default: t('default'),
  healthy: t('healthy'),
  unhealthy: t('unhealthy'),
  down: t('down'),
  available: t('available'),
  unavailable: t('unavailable'),
  closed: t('closed'),
  open: t('open'),
  'half-open': t('half-open'),
  'forced-open': t('forced-open'),
  relaxed: t('relaxed'),
  normal: t('normal'),
  busy: t('busy'),
  critical: t('critical'),
  load: t('load'),
  schedule: t('schedule'),
  'command line': t('command line'),
  'lists reloaded': t('lists reloaded'),
  'rules and routes reloaded': t('rules and routes reloaded'),
  'rules, routes, listeners and upstreams reloaded': t('rules, routes, listeners and upstreams reloaded'),
};

/** A state or result of the API in words of the language. */
export function word(state) {
  return WORDS[state] ?? state;
}

/** The text of a quota: `5/min`, with its algorithm if the text does not contain it. */
export function quota({ text, algorithm, tier }) {
  const of = tier ? `${tier}: ` : '';
  return text.includes(algorithm) || algorithm === 'token-bucket' ? `${of}${text}` : `${of}${text} (${algorithm})`;
}
