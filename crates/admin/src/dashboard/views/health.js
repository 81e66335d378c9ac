// Health of upstream servers and stores, load, features, and the state of queues, circuit breakers and key tables.

import { latencyChart } from '../chart.js';
import { chip, empty, definitionList, h, panel, select, table } from '../dom.js';
import { bytes, count, duration, dateTime, share, word } from '../format.js';
import { t } from '../language.js';
import { featuresPanel, loadPanel } from './overload.js';
import { inMemory, percentile, percentiles } from './rule.js';
import { tiles, windowSelect } from './traffic.js';

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
  const { root, live } = page;
  const numbers = tiles([t('Up for'), t('In flight'), t('2xx and 3xx'), '4xx', '5xx']);
  const load = loadPanel();
  const features = featuresPanel(page);
  const servers = section(t('Servers'));
  const latencies = serverLatencies(live);
  const stores = section(t('Stores'));
  const guards = section(t('Queues, breakers and adaptive limits'));
  const tables = section(t('Keys in memory'));
  const gateway = section(t('This gateway'));
  root.append(
    h('div', { class: 'title' }, h('h1', {}, t('Health')), windowSelect(live)),
    numbers.element,
    h('div', { class: 'pair' }, load.element, features.element),
    servers.element,
    latencies.element,
    stores.element,
    guards.element,
    h('div', { class: 'pair' }, tables.element, gateway.element),
  );

  return {
    snapshot(it) {
      const upstream = it.responses;
      const own = it['gateway-responses'];
      const both = (name) => [
        count(upstream[name]),
        t('total from servers · {count} from the gateway', { count: count(own[name]) }),
      ];
      numbers.setText([
        [duration(Math.floor(it.uptime)), ''],
        [count(it.requests['in-flight']), t('to servers now')],
        [count(upstream['2xx'] + upstream['3xx']), t('total from servers')],
        both('4xx'),
        both('5xx'),
      ]);
      load.update(it.load);
      features.update(it.features);
      servers.show(it.upstreams, () => serverTable(it.upstreams));
      latencies.update(it.upstreams);
      stores.show(it.stores, () => storeTable(it.stores));
      const protectedRules = it.rules
        .filter(({ queue, breaker, adaptive }) => queue || breaker || adaptive)
        .map(({ name, queue, breaker, adaptive }) => ({ name, queue, breaker, adaptive }));
      guards.show(protectedRules, () => guardTable(protectedRules));
      const withTables = it.rules.filter(({ table }) => table).map(({ name, table }) => ({ name, table }));
      tables.show(withTables, () => tableSizes(withTables));
      const latency = [times(it.latency.decision), times(it.latency.wait), times(it.latency.request)];
      gateway.show([it.policy, it.listeners, it.decisions, it.envoy, it.watchers, latency], () =>
        definitionList([
          [t('Version'), it.version],
          [t('Latency'), latency[2]],
          [t('Decision time'), latency[0]],
          [t('Time in queue'), latency[1]],
          [t('Workers'), count(it.workers)],
          [t('Listeners'), it.listeners.map(({ address, tls }) => (tls ? `${address} (TLS)` : address)).join(', ')],
          [t('Decision API'), it.decisions],
          ['Envoy', it.envoy],
          [t('Policy loaded'), dateTime(it.policy.loaded)],
          [t('Reloads'), count(it.policy.reloads)],
          [t('Live subscribers'), t('{count} of {all}', { count: count(it.watchers.current), all: count(it.watchers.max) })],
        ]),
      );
    },
  };
}

const times = (latency) => (latency.count ? percentiles(latency) : null);

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

const state = (name) => chip(word(name), TONES[name]);

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

const latencyColumn = (name) => [name, 'number', ({ latency }) => (latency?.count ? percentile(latency[name]) : '–')];

function serverTable(upstreams) {
  const all = upstreams.flatMap(({ name, servers }) => servers.map((server) => ({ ...server, upstream: name })));
  if (all.length === 0) return empty(t('This policy has no upstreams.'));
  return h(
    'div',
    {},
    listing(t('Servers'), all, [
      [t('Upstream'), 'text', ({ upstream }) => upstream],
      [t('Server'), 'heading', ({ address }) => h('code', {}, address)],
      [t('Health'), 'text', ({ health }) => state(health)],
      [t('In flight'), 'number', (server) => count(server['in-flight'])],
      [t('Responses'), 'number', ({ responses }) => count(responses)],
      ['5xx', 'number', ({ classes }) => count(classes['5xx'])],
      ...['p50', 'p95', 'p99'].map(latencyColumn),
      [t('Failed requests'), 'number', ({ failures }) => count(failures)],
      [t('Failed checks'), 'number', (server) => count(server['failed-checks'])],
      [t('Breaker'), 'text', ({ breaker }) => (breaker ? state(breaker.state ?? breaker) : '–')],
    ]),
    h('p', { class: 'note' }, t('Health and requests in flight are current. Counts and latencies are since startup.')),
  );
}

/** The latency of one server over time. */
function serverLatencies(live) {
  const choice = select([], null, { class: 'window', 'aria-label': t('Server') });
  const picture = latencyChart(live, t('Latency of a server'));
  const note = h('p', { class: 'note' }, t('From sending a request to the head of the response.'));
  const element = panel(t('Latency of servers'), h('div', { class: 'filters' }, choice, note), picture.element);
  const draw = () => {
    const [upstream, address] = choice.value.split('\n');
    picture.draw(live.serverLatency(upstream, address));
  };
  choice.addEventListener('change', draw);
  let lastNames = null;
  return {
    element,
    update(upstreams) {
      const names = upstreams.flatMap(({ name, servers }) => servers.map(({ address }) => `${name}\n${address}`));
      element.hidden = names.length === 0;
      if (names.join() !== lastNames) {
        lastNames = names.join();
        const before = choice.value;
        choice.replaceChildren(
          ...names.map((name) => h('option', { value: name, selected: name === before }, name.replace('\n', ' '))),
        );
      }
      draw();
    },
  };
}

function storeTable(stores) {
  if (stores.length === 0)
    return empty(t('All counters are in memory.'), t('Several gateways can share the counters of a `store`.'));
  const lastError = (text) => (text ? h('p', { class: 'wrong' }, text) : null);
  return listing(t('Stores'), stores, [
    [t('Store'), 'heading', ({ name }) => name],
    [t('Health'), 'text', (store) => [state(store.health), lastError(store['last-error'])]],
    [t('Calls'), 'number', ({ calls }) => count(calls)],
    [t('Failures'), 'number', ({ failures }) => count(failures)],
    ...['p50', 'p95', 'p99'].map(latencyColumn),
    [t('Unavailable for'), 'number', (store) => duration(store['degraded-seconds'])],
  ]);
}

function guardTable(rules) {
  if (rules.length === 0)
    return empty(
      t('No rule has a queue, breaker or adaptive limit.'),
      t('`queue`, `breaker` and `adaptive` in a rule delay or reject requests under overload and failures.'),
    );
  const probe = (remaining) => 
    remaining ? t('next probe in {duration}', { duration: duration(remaining) }) : '';
  const chips = (breaker) => h('span', { class: 'chips' }, state(breaker.state), probe(breaker.remaining));
  return listing(t('Queues, breakers and adaptive limits'), rules, [
    [t('Rule'), 'heading', ({ name }) => h('a', { href: `#/rules/${encodeURIComponent(name)}` }, name)],
    [t('Waiting'), 'number', ({ queue }) => count(queue?.waiting)],
    [t('In flight'), 'number', ({ adaptive }) => count(adaptive?.['in-flight'])],
    [t('Current limit'), 'number', ({ adaptive }) => count(adaptive?.limit)],
    [t('Breaker'), 'text', ({ breaker }) => (breaker ? chips(breaker) : '–')],
    [t('Failure rate'), 'number', ({ breaker }) => (breaker ? share(breaker['failure-rate']) : '–')],
    [t('Rejected'), 'number', ({ breaker }) => count(breaker?.rejected)],
  ]);
}

function tableSizes(rules) {
  if (rules.length === 0) return empty(t('No keys in memory.'));
  return listing(t('Keys in memory'), rules, [
    [t('Rule'), 'heading', ({ name }) => name],
    [t('Keys'), 'number', ({ table }) => inMemory(table)],
    [t('Capacity'), 'number', ({ table }) => count(table.capacity)],
    [t('Memory'), 'number', ({ table }) => bytes(table.bytes)],
    [t('Overflowed'), 'number', ({ table }) => count(table.overflowed)],
  ]);
}
