// What the gateway leans on: servers, stores, and what holds requests back.

import { chip, empty, facts, h, panel, table } from '../dom.js';
import { bytes, count, length, moment, share } from '../format.js';
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
  const servers = part('Servers');
  const stores = part('Stores');
  const guards = part('Queues, breakers and adaptive limits');
  const tables = part('Keys in memory');
  const gateway = part('This gateway');
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
      numbers.say([
        [length(Math.floor(it.uptime)), ''],
        [count(it.requests['in-flight']), 'with servers'],
        [count(answers['2xx'] + answers['3xx']), 'by servers'],
        both('4xx'),
        both('5xx'),
      ]);
      servers.show(it.upstreams, () => ofServers(it.upstreams));
      stores.show(it.stores, () => ofStores(it.stores));
      const guarded = it.rules
        .filter(({ queue, breaker, adaptive }) => queue || breaker || adaptive)
        .map(({ name, queue, breaker, adaptive }) => ({ name, queue, breaker, adaptive }));
      guards.show(guarded, () => ofGuards(guarded));
      const kept = it.rules.filter(({ table }) => table).map(({ name, table }) => ({ name, table }));
      tables.show(kept, () => ofTables(kept));
      const latency = [times(it.latency.decision), times(it.latency.wait)];
      gateway.show([it.policy, it.listeners, it.decisions, it.watchers, latency], () =>
        facts([
          ['Version', it.version],
          ['A decision takes', latency[0]],
          ['Requests that wait', latency[1]],
          ['Workers', count(it.workers)],
          ['Listens', it.listeners.map(({ address, tls }) => (tls ? `${address} (TLS)` : address)).join(', ')],
          ['Decisions', it.decisions],
          ['Policy loaded', moment(it.policy.loaded)],
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
  return seconds === null ? 'over 60\u00a0s' : length(seconds);
}

/** A part that is only written anew when what it tells has changed, so that it can be read in peace. */
function part(title) {
  const body = h('div');
  let told = null;
  return {
    element: panel(title, body),
    show(what, write) {
      const text = JSON.stringify(what);
      if (text === told) return;
      told = text;
      const focused = body.contains(document.activeElement);
      body.replaceChildren(write());
      if (focused) body.querySelector('[tabindex]')?.focus({ preventScroll: true });
    },
  };
}

const state = (word) => chip(word, TONES[word]);

function ofServers(upstreams) {
  const rows = upstreams.flatMap(({ name, latency, servers }) =>
    servers.map((server) =>
      h(
        'tr',
        {},
        h('td', {}, name),
        h('th', { scope: 'row' }, h('code', {}, server.address)),
        h('td', {}, state(server.health)),
        h('td', { class: 'number' }, count(server['in-flight'])),
        h('td', { class: 'number' }, latency?.count ? percentile(latency.p50) : '–'),
        h('td', { class: 'number' }, latency?.count ? percentile(latency.p99) : '–'),
        h('td', { class: 'number' }, count(server.failures)),
        h('td', { class: 'number' }, count(server['failed-checks'])),
        h('td', {}, server.breaker ? state(server.breaker.state ?? server.breaker) : '–'),
      ),
    ),
  );
  if (rows.length === 0) return empty('This policy names no upstreams.');
  return table(
    'Servers',
    [
      'Upstream',
      'Server',
      'Health',
      { name: 'In flight', number: true },
      { name: 'p50', number: true },
      { name: 'p99', number: true },
      { name: 'Failed requests', number: true },
      { name: 'Failed checks', number: true },
      'Breaker',
    ],
    h('tbody', {}, rows),
  );
}

function ofStores(stores) {
  if (stores.length === 0)
    return empty('Everything is counted in memory.', 'A `store` in the policy is shared by several gateways.');
  return table(
    'Stores',
    [
      'Store',
      'Health',
      { name: 'Calls', number: true },
      { name: 'Failures', number: true },
      { name: 'p50', number: true },
      { name: 'p99', number: true },
      { name: 'Away for', number: true },
    ],
    h(
      'tbody',
      {},
      stores.map((store) =>
        h(
          'tr',
          {},
          h('th', { scope: 'row' }, store.name),
          h('td', {}, state(store.health), store.trouble ? h('p', { class: 'wrong' }, store.trouble) : null),
          h('td', { class: 'number' }, count(store.calls)),
          h('td', { class: 'number' }, count(store.failures)),
          h('td', { class: 'number' }, store.latency?.count ? percentile(store.latency.p50) : '–'),
          h('td', { class: 'number' }, store.latency?.count ? percentile(store.latency.p99) : '–'),
          h('td', { class: 'number' }, length(store['degraded-seconds'])),
        ),
      ),
    ),
  );
}

function ofGuards(rules) {
  if (rules.length === 0)
    return empty(
      'No rule has any.',
      '`queue`, `breaker` and `adaptive` in a rule hold requests back while there are too many, or they fail.',
    );
  return table(
    'Queues, breakers and adaptive limits',
    [
      'Rule',
      { name: 'Waiting', number: true },
      { name: 'In flight', number: true },
      { name: 'Limit now', number: true },
      'Breaker',
      { name: 'Failing', number: true },
      { name: 'Rejected', number: true },
    ],
    h(
      'tbody',
      {},
      rules.map(({ name, queue, breaker, adaptive }) =>
        h(
          'tr',
          {},
          h('th', { scope: 'row' }, h('a', { href: `#/rules/${encodeURIComponent(name)}` }, name)),
          h('td', { class: 'number' }, count(queue?.waiting)),
          h('td', { class: 'number' }, count(adaptive?.['in-flight'])),
          h('td', { class: 'number' }, count(adaptive?.limit)),
          h(
            'td',
            {},
            breaker
              ? h(
                  'span',
                  { class: 'chips' },
                  state(breaker.state),
                  breaker.remaining ? `tries in ${length(breaker.remaining)}` : '',
                )
              : '–',
          ),
          h('td', { class: 'number' }, breaker ? share(breaker['failure-rate']) : '–'),
          h('td', { class: 'number' }, count(breaker?.rejected)),
        ),
      ),
    ),
  );
}

function ofTables(rules) {
  if (rules.length === 0) return empty('Nothing is counted in memory.');
  return table(
    'Keys in memory',
    [
      'Rule',
      { name: 'Keys', number: true },
      { name: 'Room', number: true },
      { name: 'Memory', number: true },
      { name: 'No room', number: true },
    ],
    h(
      'tbody',
      {},
      rules.map(({ name, table: it }) =>
        h(
          'tr',
          {},
          h('th', { scope: 'row' }, name),
          h('td', { class: 'number' }, inMemory(it)),
          h('td', { class: 'number' }, count(it.capacity)),
          h('td', { class: 'number' }, bytes(it.bytes)),
          h('td', { class: 'number' }, count(it.overflowed)),
        ),
      ),
    ),
  );
}
