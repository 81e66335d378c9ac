// Health of upstream servers and stores, load, features, and the state of queues, circuit breakers and key tables.

import { chip, empty, definitionList, h, panel, table } from '../dom.js';
import { bytes, count, duration, dateTime, share } from '../format.js';
import { featuresPanel, loadPanel } from './overload.js';
import { inMemory } from './rule.js';
import { tiles } from './traffic.js';

const TONES = {
  healthy: 'good',
  available: 'good',
  unhealthy: 'warn',
  down: 'bad',
  unavailable: 'bad',
  closed: 'good',
  open: 'bad',
  'half-open': 'warn',
  'forced-open': 'bad',
};

export function health(page) {
  const { root } = page;
  const numbers = tiles(['Up for', 'In flight', '2xx and 3xx', '4xx', '5xx']);
  const load = loadPanel();
  const features = featuresPanel(page);
  const servers = section('Servers');
  const stores = section('Stores');
  const guards = section('Queues, breakers and adaptive limits');
  const tables = section('Keys in memory');
  const gateway = section('This gateway');
  root.append(
    h('h1', {}, 'Health'),
    numbers.element,
    h('div', { class: 'pair' }, load.element, features.element),
    servers.element,
    stores.element,
    guards.element,
    h('div', { class: 'pair' }, tables.element, gateway.element),
  );

  return {
    snapshot(it) {
      const upstream = it.responses;
      const own = it['gateway-responses'];
      const both = (name) => [count(upstream[name]), `from servers · ${count(own[name])} from the gateway`];
      numbers.setText([
        [duration(Math.floor(it.uptime)), ''],
        [count(it.requests['in-flight']), 'to servers'],
        [count(upstream['2xx'] + upstream['3xx']), 'from servers'],
        both('4xx'),
        both('5xx'),
      ]);
      load.update(it.load);
      features.update(it.features);
      servers.show(it.upstreams, () => serverTable(it.upstreams));
      stores.show(it.stores, () => storeTable(it.stores));
      const protectedRules = it.rules
        .filter(({ queue, breaker, adaptive }) => queue || breaker || adaptive)
        .map(({ name, queue, breaker, adaptive }) => ({ name, queue, breaker, adaptive }));
      guards.show(protectedRules, () => guardTable(protectedRules));
      const withTables = it.rules.filter(({ table }) => table).map(({ name, table }) => ({ name, table }));
      tables.show(withTables, () => tableSizes(withTables));
      const latency = [times(it.latency.decision), times(it.latency.wait)];
      gateway.show([it.policy, it.listeners, it.decisions, it.watchers, latency], () =>
        definitionList([
          ['Version', it.version],
          ['Decision time', latency[0]],
          ['Time in queue', latency[1]],
          ['Workers', count(it.workers)],
          ['Listeners', it.listeners.map(({ address, tls }) => (tls ? `${address} (TLS)` : address)).join(', ')],
          ['Decision API', it.decisions],
          ['Policy loaded', dateTime(it.policy.loaded)],
          ['Reloads', count(it.policy.reloads)],
          ['Live subscribers', `${count(it.watchers.current)} of ${count(it.watchers.max)}`],
        ]),
      );
    },
  };
}

/** Two percentiles. A percentile beyond the last bucket is unknown. */
function times({ count: some, p50, p99 }) {
  return some ? `${percentile(p50)}, or ${percentile(p99)} at p99` : null;
}

function percentile(seconds) {
  return seconds === null ? 'over 60\u00a0s' : duration(seconds);
}

/** A section that is rendered only when its data changes, so that selections and focus survive. */
function section(title) {
  const body = h('div');
  let lastText = null;
  return {
    element: panel(title, body),
    show(data, write) {
      const text = JSON.stringify(data);
      if (text === lastText) return;
      lastText = text;
      const focused = body.contains(document.activeElement);
      body.replaceChildren(write());
      if (focused) body.querySelector('[tabindex]')?.focus({ preventScroll: true });
    },
  };
}

const state = (word) => chip(word, TONES[word]);

/** A table of items. A column is `[name, kind, of(item)]`; its kind is `heading`, `number` or `text`. */
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
  if (all.length === 0) return empty('This policy has no upstreams.');
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
    return empty('All counters are in memory.', 'Several gateways can share the counters of a `store`.');
  const lastError = (text) => (text ? h('p', { class: 'wrong' }, text) : null);
  return listing('Stores', stores, [
    ['Store', 'heading', ({ name }) => name],
    ['Health', 'text', (store) => [state(store.health), lastError(store['last-error'])]],
    ['Calls', 'number', ({ calls }) => count(calls)],
    ['Failures', 'number', ({ failures }) => count(failures)],
    ['p50', 'number', p50Text],
    ['p99', 'number', p99Text],
    ['Unavailable for', 'number', (store) => duration(store['degraded-seconds'])],
  ]);
}

function guardTable(rules) {
  if (rules.length === 0)
    return empty(
      'No rule has a queue, breaker or adaptive limit.',
      '`queue`, `breaker` and `adaptive` in a rule delay or reject requests under overload and failures.',
    );
  const probe = (remaining) => (remaining ? `next probe in ${duration(remaining)}` : '');
  const chips = (breaker) => h('span', { class: 'chips' }, state(breaker.state), probe(breaker.remaining));
  return listing('Queues, breakers and adaptive limits', rules, [
    ['Rule', 'heading', ({ name }) => h('a', { href: `#/rules/${encodeURIComponent(name)}` }, name)],
    ['Waiting', 'number', ({ queue }) => count(queue?.waiting)],
    ['In flight', 'number', ({ adaptive }) => count(adaptive?.['in-flight'])],
    ['Current limit', 'number', ({ adaptive }) => count(adaptive?.limit)],
    ['Breaker', 'text', ({ breaker }) => (breaker ? chips(breaker) : '–')],
    ['Failure rate', 'number', ({ breaker }) => (breaker ? share(breaker['failure-rate']) : '–')],
    ['Rejected', 'number', ({ breaker }) => count(breaker?.rejected)],
  ]);
}

function tableSizes(rules) {
  if (rules.length === 0) return empty('No keys in memory.');
  return listing('Keys in memory', rules, [
    ['Rule', 'heading', ({ name }) => name],
    ['Keys', 'number', ({ table }) => inMemory(table)],
    ['Capacity', 'number', ({ table }) => count(table.capacity)],
    ['Memory', 'number', ({ table }) => bytes(table.bytes)],
    ['Overflowed', 'number', ({ table }) => count(table.overflowed)],
  ]);
}
