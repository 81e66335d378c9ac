// One rule: its traffic, settings, denial reasons and most frequent keys.

import { chart, latencyChart } from '../chart.js';
import { chip, empty, definitionList, h, panel, setText } from '../dom.js';
import { brief, bytes, count, duration, factor, quota, rate, share } from '../format.js';
import { topKeys } from './keys.js';
import { LABELS, NAMES, latencyNote, tiles, ruleStates, windowSelect } from './traffic.js';
import { OUTCOMES, recent } from '../live.js';

export const REASONS = {
  limited: 'quota exceeded',
  'no-key': 'no key in the request',
  'deny-list': 'denied by a list',
  banned: 'banned',
  overloaded: 'circuit breaker, concurrency limit or load',
  'queue-full': 'queue full',
  'store-unavailable': 'store unavailable',
  'feature-off': 'feature off',
};

export function rule(page) {
  const { root, live, argument: name } = page;
  const chips = h('span', { class: 'chips' });
  const gone = empty('The policy in force has no such rule.');
  const picture = chart(
    live,
    `Requests per second of rule ${name}`,
    NAMES.map((kind, place) => ({ name: kind, label: LABELS[place] })),
  );
  const latencies = latencyChart(live, `Latency of requests of rule ${name}`);
  const times = h('p', { class: 'note' });
  const numbers = tiles(LABELS);
  const made = h('div');
  const reasons = h('div');
  const holder = h('div');
  let top = null;
  let by = null;
  const follow = (snapshot, mode) => {
    // A rule in shadow mode denies nothing, so show the keys that it would deny.
    const metric = mode === 'shadow' ? 'shadow-denied' : 'denied';
    if (metric !== by) {
      by = metric;
      top?.close();
      top = topKeys(page, { rule: name, by, limit: 10 });
      holder.replaceChildren(top.element);
    }
    top.snapshot(snapshot);
  };
  gone.hidden = true;
  const body = h(
    'div',
    { class: 'view' },
    numbers.element,
    panel('Traffic', picture.element),
    panel('Latency', latencyNote(), latencies.element, times),
    h('div', { class: 'pair' }, panel('Settings', made), panel('Denial reasons', reasons)),
    panel('Top keys', holder),
  );
  root.append(h('div', { class: 'title' }, h('h1', {}, name), chips, windowSelect(live)), gone, body);

  let lastText = '';
  return {
    snapshot(snapshot) {
      const rule = snapshot.rules.find((rule) => rule.name === name);
      gone.hidden = rule !== undefined;
      body.hidden = !rule;
      if (!rule) return;
      const rates = recent(live.rule(name));
      numbers.setText(
        OUTCOMES.map((outcome, place) => [
          rates ? rate(rates[place]) : '–',
          `/s · ${brief(rule.counts[outcome])} total`,
        ]),
      );
      picture.draw(live.rule(name));
      latencies.draw(live.ruleLatency(name));
      setText(times, latencySummary(rule.latency));
      follow(snapshot, rule.mode);
      const { counts, latency, ...rest } = rule;
      const text = JSON.stringify([rest, rule.mode === 'shadow' ? counts['shadow-denied'] : null]);
      if (text === lastText) return;
      lastText = text;
      chips.replaceChildren(
        ...[[rule.mode, rule.mode === 'enforce' ? 'good' : null], ...ruleStates(rule)]
          .filter(([word], place) => place > 0 || word === 'enforce')
          .map(([word, tone]) => chip(word, tone)),
      );
      made.replaceChildren(definitionList(parts(rule)));
      reasons.replaceChildren(denialReasons(rule));
    },
    close: () => top?.close(),
  };
}

function parts(rule) {
  const { breaker, adaptive, table, queue, feature, shedding, 'while-failing': failing } = rule;
  return [
    ['Requests', rule.match ?? 'all'],
    ['Key', rule.key && rule.key !== 'all' ? rule.key : 'all requests together'],
    [
      'Quotas',
      rule.quotas.length === 0
        ? null
        : h('span', {}, rule.quotas.map((it, place) => [place > 0 ? ', ' : '', h('code', {}, quota(it))]).flat()),
    ],
    ['Store', rule.store ?? 'memory'],
    ['Queue', queue && `${count(queue.waiting)} waiting`],
    ['Breaker', breaker && breakerText(breaker)],
    ['Adaptive limit', adaptive && `${count(adaptive['in-flight'])} of ${count(adaptive.limit)} in flight`],
    ['Feature', feature && `${feature.name}, ${feature.on ? 'on' : 'off'}`],
    ['Shedding', shedding && (shedding.length > 0 ? shedding.join(', ') : 'nothing')],
    ['Factor of quotas', typeof rule.scale === 'number' ? factor(rule.scale) : null],
    ['Failing keys', failing && `${count(failing.failing)} of ${count(failing.keys)}`],
    ['Keys in memory', table && `${inMemory(table)} of ${count(table.capacity)}, ${bytes(table.bytes)} at most`],
    ['Overflowed', table?.overflowed ? count(table.overflowed) : null],
    ['Bans', rule.bans ? count(rule.bans) : null],
  ];
}

/** The percentiles since startup. A percentile beyond the last bucket is unknown. */
export function latencySummary({ count: some, p50, p95, p99 }) {
  if (!some) return 'No latency was measured yet.';
  return `Since startup: p50 ${percentile(p50)}, p95 ${percentile(p95)}, p99 ${percentile(p99)}, of ${count(some)} requests.`;
}

export function percentile(seconds) {
  return seconds === null ? 'over 60\u00a0s' : duration(seconds);
}

/** Keys with state that differs from that of a new key; in large tables, all used entries. */
export function inMemory({ live, used }) {
  return live === null || live === undefined ? `${count(used)} used` : `${count(live)} live`;
}

function breakerText({ state, 'failure-rate': failing, rejected, remaining }) {
  const parts = [state, `${count(rejected)} rejected`];
  if (failing !== null) parts.push(`${share(failing)} fail`);
  if (remaining) parts.push(`next probe in ${duration(remaining)}`);
  return parts.join(', ');
}

function denialReasons({ mode, counts, 'denied-by': by }) {
  const some = Object.entries(by).filter(([, number]) => number > 0);
  if (some.length === 0 && mode === 'shadow' && counts['shadow-denied'] > 0)
    return empty(`In shadow mode the rule denies nothing. It would have denied ${count(counts['shadow-denied'])} requests.`);
  if (some.length === 0) return empty('No request was denied.');
  return definitionList(some.map(([reason, number]) => [REASONS[reason] ?? reason, count(number)]));
}
