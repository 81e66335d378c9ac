// The stream of snapshots, and the numbers of the last hour: those of the gateway, every ten seconds, and those of the
// stream, every second.

import { get, request } from './api.js';
import { t } from './language.js';

/** The length of charts, in seconds. */
export const WINDOWS = [
  [300, t('Last 5 minutes')],
  [900, t('Last 15 minutes')],
  [3600, t('Last hour')],
];
/** The length of the series of the stream, in seconds. Before that, the series of the gateway are shown. */
const STREAM_WINDOW = 300;
/** The seconds between two points of the gateway, and the number of points that it stores. */
const STEP = 10;
const MAX_POINTS = 360;
/** Milliseconds without a snapshot after which the stream counts as lost. */
const STREAM_TIMEOUT = 5000;
/** Milliseconds after which a hidden tab closes its stream: a browser limits the connections of all tabs together. */
const HIDDEN_TIMEOUT = 10000;

export const OUTCOMES = ['admitted', 'delayed', 'denied', 'shadow-denied'];
const TOTALS = ['admitted', 'rejected'];
const PERCENTILES = ['p50', 'p95', 'p99'];

/** Emits `snapshot` for each snapshot, `state` when the connection opens or is lost, and `locked` without a token. */
export class LiveFeed extends EventTarget {
  latest = null;
  state = 'connecting';
  /** The chosen length of charts. */
  chosenWindow = STREAM_WINDOW;
  #series = new Map();
  /** The time of the first snapshot. */
  #streamSince = 0;
  /** The series of the gateway by name, the time of their last point, and the time of the last request for them. */
  #past = new Map();
  #pastUntil = 0;
  #pastLoaded = 0;
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

  /** The length of charts, in seconds: the chosen one, or less while there are fewer points. */
  get window() {
    const first = this.#past.get('requests')?.[0] ?? this.#series.get('requests')?.[0];
    const length = first ? this.now - first.time : 0;
    const lengths = [60, ...WINDOWS.map(([seconds]) => seconds)];
    return Math.min(this.chosenWindow, lengths.find((seconds) => seconds >= length) ?? this.chosenWindow);
  }

  /** The time of the latest snapshot, in seconds. */
  get now() {
    return this.latest ? Date.parse(this.latest.time) / 1000 : 0;
  }

  /** Rates of a rule: `[{ time, values: [admitted, delayed, denied, shadow] }]`, oldest first. */
  rule(name) {
    return this.#rates(`rule ${name}`);
  }

  /** Rates of all requests: `[{ time, values: [admitted, rejected] }]`. */
  requests() {
    return this.#rates('requests');
  }

  /** Latencies in seconds, of all requests: `[{ time, values: [p50, p95, p99] }]`. A value without requests is `null`. */
  latency() {
    return this.#inWindow('latency');
  }

  /** The same for a rule. */
  ruleLatency(name) {
    return this.#inWindow(`latency of rule ${name}`);
  }

  /** The same for a server, up to the head of its responses. */
  serverLatency(upstream, address) {
    return this.#inWindow(`latency of server ${upstream} ${address}`);
  }

  /** The number of requests that were rejected in the last minute: by the stream, and before it by the gateway. */
  rejectedLastMinute() {
    const since = this.now - 60;
    const within = (from, to, end) => Math.max(0, Math.min(to, end) - Math.max(from, since));
    const count = (series, end) =>
      series.reduce((sum, { time, seconds, values }) => sum + within(time - seconds, time, end) * values[1], 0);
    const past = count(this.#past.get('requests') ?? [], this.#streamSince);
    return Math.round(past + count(this.#series.get('requests') ?? [], this.now));
  }

  #inWindow(name) {
    const since = this.now - this.window;
    return (this.#past.get(name) ?? []).filter(({ time }) => time >= since);
  }

  #rates(name) {
    const since = this.now - this.window;
    return this.#all(name).filter(({ time }) => time >= since);
  }

  /** The points of the stream, after those of the gateway. */
  #all(name) {
    const recent = this.#series.get(name) ?? [];
    const from = recent[0]?.time ?? Infinity;
    return [...(this.#past.get(name) ?? []).filter(({ time }) => time < from), ...recent];
  }

  /** Loads the points that the gateway has added. Shows the first ones at once, and later ones with the next snapshot. */
  async #loadPast() {
    const isFirst = this.#pastUntil === 0;
    this.#pastLoaded = this.now;
    const missing = isFirst ? MAX_POINTS : Math.ceil((this.now - this.#pastUntil) / STEP) + 1;
    try {
      this.#addPast(await get(`api/v1/series?limit=${Math.min(MAX_POINTS, missing)}`));
      if (isFirst && this.#pastUntil > 0) this.dispatchEvent(new Event('snapshot'));
    } catch (error) {
      // The stream reports a lost connection; the next snapshot loads the points again.
      this.#pastLoaded = 0;
      if (error.status === undefined) throw error;
    }
  }

  #addPast({ times, requests, rules, servers }) {
    const seconds = times.map((time) => Date.parse(time) / 1000);
    const names = new Set();
    const add = (name, columns, of, isPoint) => {
      names.add(name);
      const series = this.#past.get(name) ?? [];
      seconds.forEach((time, place) => {
        const values = columns.map((column) => of[column][place]);
        if (time > this.#pastUntil && isPoint(values)) series.push({ time, seconds: STEP, values });
      });
      const since = (seconds.at(-1) ?? 0) - MAX_POINTS * STEP;
      this.#past.set(name, series.filter(({ time }) => time > since));
    };
    const known = (values) => values.every((value) => value !== null);
    add('requests', TOTALS, requests, known);
    add('latency', PERCENTILES, requests, () => true);
    for (const rule of rules) {
      add(`rule ${rule.name}`, OUTCOMES, rule, known);
      add(`latency of rule ${rule.name}`, PERCENTILES, rule, () => true);
    }
    for (const server of servers)
      add(`latency of server ${server.upstream} ${server.address}`, PERCENTILES, server, () => true);
    for (const name of this.#past.keys()) if (!names.has(name)) this.#past.delete(name);
    this.#pastUntil = Math.max(this.#pastUntil, seconds.at(-1) ?? 0);
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
    if (before && snapshot.uptime < before.uptime) {
      this.#series.clear();
      this.#past.clear();
      this.#pastUntil = 0;
      this.#pastLoaded = 0;
      this.#streamSince = this.now;
    } else if (before) this.#add(before, snapshot);
    this.#streamSince ||= this.now;
    if (this.now - this.#pastLoaded >= STEP) this.#loadPast();
    this.#setState('live');
    this.dispatchEvent(new Event('snapshot'));
  }

  /** A rate is the difference of two counts divided by the difference of their times. */
  #add(before, now) {
    const time = Date.parse(now.time) / 1000;
    const elapsed = time - Date.parse(before.time) / 1000;
    if (!(elapsed > 0)) return;
    const rates = (names, old, current) => names.map((name) => Math.max(0, current[name] - old[name]) / elapsed);
    this.#push('requests', time, elapsed, rates(TOTALS, before.requests, now.requests));
    const known = new Map(before.rules.map((rule) => [rule.name, rule]));
    for (const rule of now.rules) {
      const old = known.get(rule.name);
      if (old) this.#push(`rule ${rule.name}`, time, elapsed, rates(OUTCOMES, old.counts, rule.counts));
    }
  }

  #push(name, time, seconds, values) {
    const series = this.#series.get(name) ?? [];
    series.push({ time, seconds, values });
    while (series.length > 0 && series[0].time < time - STREAM_WINDOW) series.shift();
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
