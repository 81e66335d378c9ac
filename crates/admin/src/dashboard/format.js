// Formats numbers and times for display.

const whole = new Intl.NumberFormat('en', { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat('en', { minimumFractionDigits: 1, maximumFractionDigits: 1 });
/** Keeps a number and its unit on one line. */
const SPACE = '\u00a0';
const short = new Intl.NumberFormat('en', { notation: 'compact', maximumFractionDigits: 1 });

/** 1234567 as `1,234,567`. */
export function count(number) {
  return number === null || number === undefined ? '–' : whole.format(number);
}

/** 1234567 as `1.2M`, for narrow columns. */
export function brief(number) {
  return number < 10000 ? count(number) : short.format(number);
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
  if (number > 0 && number < 0.001) return `<0.1${SPACE}%`;
  return `${tenth.format(number * 100)}${SPACE}%`;
}

/** A factor of quotas: 0.512 as `x0.512`. */
export function factor(number) {
  return `x${Number(number.toFixed(3))}`;
}

/** Seconds as a duration: `480 ns`, `1.2 ms`, `48.2 s`, `3 min 20 s`, `2 d 4 h`. */
export function duration(seconds) {
  if (seconds === null || seconds === undefined) return '–';
  if (seconds === 0) return `0${SPACE}s`;
  for (const [unit, size] of [
    ['ns', 1e-9],
    ['µs', 1e-6],
    ['ms', 1e-3],
  ]) {
    if (seconds < size * 999.5) return `${digits(seconds / size)}${SPACE}${unit}`;
  }
  if (seconds < 60) return `${digits(seconds)}${SPACE}s`;
  const total = Math.round(seconds);
  const units = [
    ['d', 86400],
    ['h', 3600],
    ['min', 60],
    ['s', 1],
  ];
  const first = units.findIndex(([, size]) => total >= size);
  return units
    .slice(first, first + 2)
    .reduce(
      ({ rest, texts }, [unit, size]) => {
        const number = Math.floor(rest / size);
        return { rest: rest - number * size, texts: number > 0 ? [...texts, `${number}${SPACE}${unit}`] : texts };
      },
      { rest: total, texts: [] },
    )
    .texts.join(' ');
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
    if (number >= size) return `${digits(number / size)}${SPACE}${unit}`;
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

/** The text of a quota: `5/min`, with its algorithm if the text does not contain it. */
export function quota({ text, algorithm, tier }) {
  const of = tier ? `${tier}: ` : '';
  return text.includes(algorithm) || algorithm === 'token-bucket' ? `${of}${text}` : `${of}${text} (${algorithm})`;
}
