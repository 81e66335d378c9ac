// The stream of snapshots, and the rates of the last minutes.

import { request } from './api.js';

/** The length of the stored series, in seconds. */
const WINDOW = 300;
/** Milliseconds without a snapshot after which the stream counts as lost. */
const STREAM_TIMEOUT = 5000;
/** Milliseconds after which a hidden tab closes its stream: a browser limits the connections of all tabs together. */
const HIDDEN_TIMEOUT = 10000;

export const OUTCOMES = ['admitted', 'delayed', 'denied', 'shadow-denied'];

/** Emits `snapshot` for each snapshot, `state` when the connection opens or is lost, and `locked` without a token. */
export class LiveFeed extends EventTarget {
  latest = null;
  state = 'connecting';
  #series = new Map();
  #source = null;
  #timeout = null;
  #retryTimer = null;

  start() {
    this.#open();
    let hiddenTimer = null;
    document.addEventListener('visibilitychange', () => {
      clearTimeout(hiddenTimer);
      if (document.hidden) hiddenTimer = setTimeout(() => this.#close(), HIDDEN_TIMEOUT);
      else if (!this.#source) this.#open();
    });
  }

  /** The length of charts, in seconds: a minute at first, then the whole series. */
  get window() {
    const series = this.requests();
    return series.length > 0 && series.at(-1).time - series[0].time > 60 ? WINDOW : 60;
  }

  /** The time of the latest snapshot, in seconds. */
  get now() {
    return this.latest ? Date.parse(this.latest.time) / 1000 : 0;
  }

  /** Rates of a rule in the last minutes: `[{ time, values: [admitted, delayed, denied, shadow] }]`, oldest first. */
  rule(name) {
    return this.#series.get(`rule ${name}`) ?? [];
  }

  /** Rates of all requests: `[{ time, values: [admitted, rejected] }]`. */
  requests() {
    return this.#series.get('requests') ?? [];
  }

  #open() {
    this.#close();
    this.#source = new AbortController();
    this.#read(this.#source);
    this.#resetTimeout();
  }

  /** Opens the stream again, with the current token. */
  resume() {
    this.#open();
  }

  /** Uses `fetch`, because `EventSource` cannot send a token. */
  async #read(source) {
    try {
      const response = await request('GET', 'api/v1/live', { signal: source.signal });
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      let text = '';
      for (let piece = await reader.read(); !piece.done; piece = await reader.read()) {
        const events = (text + piece.value).split('\n\n');
        text = events.pop();
        for (const event of events) {
          const data = event.split('\n').find((line) => line.startsWith('data: '));
          if (data && this.#source === source) this.#apply(JSON.parse(data.slice('data: '.length)));
        }
      }
    } catch (error) {
      if (this.#source === source && error.status === 401) {
        this.#close();
        this.#markLost();
        this.dispatchEvent(new Event('locked'));
      }
    }
    if (this.#source !== source) return;
    this.#markLost();
    this.#retry();
  }

  #close() {
    clearTimeout(this.#timeout);
    clearTimeout(this.#retryTimer);
    const source = this.#source;
    this.#source = null;
    source?.abort();
  }

  #retry() {
    clearTimeout(this.#retryTimer);
    this.#retryTimer = setTimeout(() => this.#open(), 2000);
  }

  #resetTimeout() {
    clearTimeout(this.#timeout);
    this.#timeout = setTimeout(() => {
      this.#markLost();
      this.#retry();
    }, STREAM_TIMEOUT);
  }

  #markLost() {
    this.#setState('lost');
  }

  #setState(state) {
    if (this.state === state) return;
    this.state = state;
    this.dispatchEvent(new Event('state'));
  }

  #apply(snapshot) {
    this.#resetTimeout();
    const before = this.latest;
    this.latest = snapshot;
    if (before && snapshot.uptime < before.uptime) this.#series.clear();
    else if (before) this.#add(before, snapshot);
    this.#setState('live');
    this.dispatchEvent(new Event('snapshot'));
  }

  /** A rate is the difference of two counts divided by the difference of their times. */
  #add(before, now) {
    const time = Date.parse(now.time) / 1000;
    const elapsed = time - Date.parse(before.time) / 1000;
    if (!(elapsed > 0)) return;
    const rates = (names, old, current) => names.map((name) => Math.max(0, current[name] - old[name]) / elapsed);
    this.#push('requests', time, rates(['admitted', 'rejected'], before.requests, now.requests));
    const known = new Map(before.rules.map((rule) => [rule.name, rule]));
    for (const rule of now.rules) {
      const old = known.get(rule.name);
      if (old) this.#push(`rule ${rule.name}`, time, rates(OUTCOMES, old.counts, rule.counts));
    }
  }

  #push(name, time, values) {
    const series = this.#series.get(name) ?? [];
    series.push({ time, values });
    while (series.length > 0 && series[0].time < time - WINDOW) series.shift();
    this.#series.set(name, series);
  }
}

/** The mean of the last seconds of a series, or `null` if it is empty. */
export function recent(series, seconds = 5) {
  if (series.length === 0) return null;
  const since = series.at(-1).time - seconds;
  const last = series.filter(({ time }) => time > since);
  return series[0].values.map((_, place) => last.reduce((sum, { values }) => sum + values[place], 0) / last.length);
}
