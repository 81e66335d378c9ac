// What the gateway leans on: servers, stores, and what holds requests back.

import { chip, empty, definitionList, h, panel, table } from '../dom.js';
import { bytes, count, duration, dateTime, share } from '../format.js';
import { inMemory } from './rule.js';
import { tiles } from './traffic.js';

const TONES = {
  good: 'good',
  well: 'good',
  doubtful: 'warn',
  down: 'bad',
  away: 'bad',
  closed: 'good',
  open: 'bad',
  'half-open': 'warn',
  'forced-open': 'bad',
};

export function health({ root }) {
  const numbers = tiles(['Up for', 'In flight', '2xx and 3xx', '4xx', '5xx']);
  const servers = section('Servers');
  const stores = section('Stores');
  const guards = section('Queues, breakers and adaptive limits');
  const tables = section('Keys in memory');
  const gateway = section('This gateway');
  root.append(
    h('h1', {}, 'Health'),
    numbers.element,
    servers.element,
    stores.element,
    guards.element,
    h('div', { class: 'pair' }, tables.element, gateway.element),
  );

  return {
    snapshot(it) {
      const answers = it.responses;
      const own = it['gateway-responses'];
      const both = (name) => [count(answers[name]), `by servers · ${count(own[name])} by the gateway`];
      numbers.setText([
        [duration(Math.floor(it.uptime)), ''],
        [count(it.requests['in-flight']), 'with servers'],
        [count(answers['2xx'] + answers['3xx']), 'by servers'],
        both('4xx'),
        both('5xx'),
      ]);
      servers.show(it.upstreams, () => serverTable(it.upstreams));
      stores.show(it.stores, () => storeTable(it.stores));
      const guarded = it.rules
        .filter(({ queue, breaker, adaptive }) => queue || breaker || adaptive)
        .map(({ name, queue, breaker, adaptive }) => ({ name, queue, breaker, adaptive }));
      guards.show(guarded, () => guardTable(guarded));
      const withTables = it.rules.filter(({ table }) => table).map(({ name, table }) => ({ name, table }));
      tables.show(withTables, () => tableSizes(withTables));
      const latency = [times(it.latency.decision), times(it.latency.wait)];
      gateway.show([it.policy, it.listeners, it.decisions, it.watchers, latency], () =>
        definitionList([
          ['Version', it.version],
          ['A decision takes', latency[0]],
          ['Requests that wait', latency[1]],
          ['Workers', count(it.workers)],
          ['Listens', it.listeners.map(({ address, tls }) => (tls ? `${address} (TLS)` : address)).join(', ')],
          ['Decisions', it.decisions],
          ['Policy loaded', dateTime(it.policy.loaded)],
          ['Read again', it.policy.reloads === 1 ? 'once' : `${count(it.policy.reloads)} times`],
          ['Who watches', `${count(it.watchers.now)} of ${count(it.watchers.most)}`],
        ]),
      );
    },
  };
}

/** Two percentiles. One beyond the last range is not known. */
function times({ count: some, p50, p99 }) {
  return some ? `${percentile(p50)}, or ${percentile(p99)} at p99` : null;
}

function percentile(seconds) {
  return seconds === null ? 'over 60\u00a0s' : duration(seconds);
}

/** A part that is only written anew when what it tells has changed, so that it can be read in peace. */
function section(title) {
  const body = h('div');
  let lastText = null;
  return {
    element: panel(title, body),
    show(what, write) {
      const text = JSON.stringify(what);
      if (text === lastText) return;
      lastText = text;
      const focused = body.contains(document.activeElement);
      body.replaceChildren(write());
      if (focused) body.querySelector('[tabindex]')?.focus({ preventScroll: true });
    },
  };
}

const state = (word) => chip(word, TONES[word]);

/** A table of items: `[name, kind, of(item)]` for each column, of which a `heading` names the row and a `number` is one. */
function listing(caption, items, columns) {
  const cell = (kind, value) =>
    kind === 'heading' ? h('th', { scope: 'row' }, value) : h('td', { class: kind === 'number' ? kind : null }, value);
  return table(
    caption,
    columns.map(([name, kind]) => ({ name, number: kind === 'number' })),
    h(
      'tbody',
      {},
      items.map((item) => h('tr', {}, columns.map(([, kind, of]) => cell(kind, of(item))))),
    ),
  );
}

const p50Text = ({ latency }) => (latency?.count ? percentile(latency.p50) : '–');
const p99Text = ({ latency }) => (latency?.count ? percentile(latency.p99) : '–');

function serverTable(upstreams) {
  const all = upstreams.flatMap(({ name, latency, servers }) =>
    servers.map((server) => ({ ...server, upstream: name, latency })),
  );
  if (all.length === 0) return empty('This policy names no upstreams.');
  return listing('Servers', all, [
    ['Upstream', 'text', ({ upstream }) => upstream],
    ['Server', 'heading', ({ address }) => h('code', {}, address)],
    ['Health', 'text', ({ health }) => state(health)],
    ['In flight', 'number', (server) => count(server['in-flight'])],
    ['p50', 'number', p50Text],
    ['p99', 'number', p99Text],
    ['Failed requests', 'number', ({ failures }) => count(failures)],
    ['Failed checks', 'number', (server) => count(server['failed-checks'])],
    ['Breaker', 'text', ({ breaker }) => (breaker ? state(breaker.state ?? breaker) : '–')],
  ]);
}

function storeTable(stores) {
  if (stores.length === 0)
    return empty('Everything is counted in memory.', 'A `store` in the policy is shared by several gateways.');
  const trouble = (text) => (text ? h('p', { class: 'wrong' }, text) : null);
  return listing('Stores', stores, [
    ['Store', 'heading', ({ name }) => name],
    ['Health', 'text', (store) => [state(store.health), trouble(store.trouble)]],
    ['Calls', 'number', ({ calls }) => count(calls)],
    ['Failures', 'number', ({ failures }) => count(failures)],
    ['p50', 'number', p50Text],
    ['p99', 'number', p99Text],
    ['Away for', 'number', (store) => duration(store['degraded-seconds'])],
  ]);
}

function guardTable(rules) {
  if (rules.length === 0)
    return empty(
      'No rule has any.',
      '`queue`, `breaker` and `adaptive` in a rule hold requests back while there are too many, or they fail.',
    );
  const tries = (remaining) => (remaining ? `tries in ${duration(remaining)}` : '');
  const chips = (breaker) => h('span', { class: 'chips' }, state(breaker.state), tries(breaker.remaining));
  return listing('Queues, breakers and adaptive limits', rules, [
    ['Rule', 'heading', ({ name }) => h('a', { href: `#/rules/${encodeURIComponent(name)}` }, name)],
    ['Waiting', 'number', ({ queue }) => count(queue?.waiting)],
    ['In flight', 'number', ({ adaptive }) => count(adaptive?.['in-flight'])],
    ['Limit now', 'number', ({ adaptive }) => count(adaptive?.limit)],
    ['Breaker', 'text', ({ breaker }) => (breaker ? chips(breaker) : '–')],
    ['Failing', 'number', ({ breaker }) => (breaker ? share(breaker['failure-rate']) : '–')],
    ['Rejected', 'number', ({ breaker }) => count(breaker?.rejected)],
  ]);
}

function tableSizes(rules) {
  if (rules.length === 0) return empty('Nothing is counted in memory.');
  return listing('Keys in memory', rules, [
    ['Rule', 'heading', ({ name }) => name],
    ['Keys', 'number', ({ table }) => inMemory(table)],
    ['Room', 'number', ({ table }) => count(table.capacity)],
    ['Memory', 'number', ({ table }) => bytes(table.bytes)],
    ['No room', 'number', ({ table }) => count(table.overflowed)],
  ]);
}
