// One rule: its traffic, settings, denial reasons and most frequent keys.

import { chart, latencyChart } from '../chart.js';
import { chip, empty, definitionList, h, panel, setText } from '../dom.js';
import { bytes, count, duration, factor, quota, rate, share, word } from '../format.js';
import { join, plural, t } from '../language.js';
import { topKeys } from './keys.js';
import { numbers as settableNumbers } from './numbers.js';
import { overrides as ruleOverrides } from './overrides.js';
import { LABELS, NAMES, latencyNote, perSecond, tiles, ruleStates, windowSelect } from './traffic.js';
import { OUTCOMES, recent } from '../live.js';

export const REASONS = {
  limited: t('quota exceeded'),
  'no-key': t('no key in the request'),
  unauthenticated: t('no valid credential'),
  'deny-list': t('denied by a list'),
  banned: t('banned'),
  overloaded: t('circuit breaker, concurrency limit or load'),
  'queue-full': t('queue full'),
  'store-unavailable': t('store unavailable'),
  'feature-off': t('feature off'),
};

export function rule(page) {
  const { root, live, argument: name } = page;
  const chips = h('span', { class: 'chips' });
  const gone = empty(t('The policy in force has no such rule.'));
  const picture = chart(
    live,
    t('Requests per second of rule {name}', { name }),
    NAMES.map((kind, place) => ({ name: kind, label: LABELS[place] })),
  );
  const latencies = latencyChart(live, t('Latency of requests of rule {name}', { name }));
  const times = h('p', { class: 'note' });
  const numbers = tiles(LABELS);
  const settable = settableNumbers(page, name);
  const overridden = ruleOverrides(page, name);
  const made = h('div');
  const reasons = h('div');
  const costs = h('div');
  const costPanel = panel(t('Costs'), costs);
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
    panel(t('Traffic'), picture.element),
    panel(t('Latency'), latencyNote(), latencies.element, times),
    h('div', { class: 'pair' }, panel(t('Settings'), made), panel(t('Denial reasons'), reasons)),
    costPanel,
    settable.element,
    overridden.element,
    panel(t('Top keys'), holder),
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
        OUTCOMES.map((outcome, place) => [rates ? rate(rates[place]) : '–', perSecond(rule.counts[outcome])]),
      );
      picture.draw(live.rule(name));
      latencies.draw(live.ruleLatency(name));
      setText(times, latencySummary(rule.latency));
      follow(snapshot, rule.mode);
      settable.snapshot(snapshot);
      overridden.snapshot();
      costPanel.hidden = !rule.settlements;
      if (rule.settlements) costs.replaceChildren(definitionList(costParts(rule.settlements)));
      const { counts, latency, settlements, ...rest } = rule;
      const text = JSON.stringify([rest, rule.mode === 'shadow' ? counts['shadow-denied'] : null]);
      if (text === lastText) return;
      lastText = text;
      chips.replaceChildren(
        ...(rule.mode === 'enforce' ? [chip(word('enforce'), 'good')] : []),
        ...ruleStates(rule).map(([text, tone]) => chip(text, tone)),
      );
      made.replaceChildren(definitionList(parts(rule)));
      reasons.replaceChildren(denialReasons(rule));
    },
    close: () => {
      top?.close();
      settable.close();
      overridden.close();
    },
  };
}

function parts(rule) {
  const { breaker, adaptive, table, queue, feature, shedding, 'while-failing': failing } = rule;
  return [
    [t('Requests'), word(rule.match ?? 'all')],
    [t('Key'), rule.key && rule.key !== 'all' ? rule.key : t('all requests together')],
    [
      t('Quotas'),
      rule.quotas.length === 0
        ? null
        : h('span', {}, rule.quotas.map((it, place) => [place > 0 ? ', ' : '', h('code', {}, quota(it))]).flat()),
    ],
    [t('Store'), rule.store ?? t('memory')],
    [t('Queue'), queue && t('{count} waiting', { count: count(queue.waiting) })],
    [t('Breaker'), breaker && breakerText(breaker)],
    [
      t('Adaptive limit'),
      adaptive &&
        t('{count} of {limit} in flight', { count: count(adaptive['in-flight']), limit: count(adaptive.limit) }),
    ],
    [t('Feature'), feature && join([feature.name, word(feature.on ? 'on' : 'off')], t(', '))],
    [t('Shedding'), shedding && (shedding.length > 0 ? shedding.join(', ') : t('nothing'))],
    [t('Factor of quotas'), typeof rule.scale === 'number' ? factor(rule.scale) : null],
    [t('Failing keys'), failing && t('{count} of {all}', { count: count(failing.failing), all: count(failing.keys) })],
    [
      t('Keys in memory'),
      table &&
        t('{keys} of {capacity}, {size} at most', {
          keys: inMemory(table),
          capacity: count(table.capacity),
          size: bytes(table.bytes),
        }),
    ],
    [t('Overflowed'), table?.overflowed ? count(table.overflowed) : null],
    [t('Bans'), rule.bans ? count(rule.bans) : null],
  ];
}

/** What the responses stated, and how it differs from the costs before the calls. */
function costParts({ requests, tokens }) {
  return [
    [t('Responses with a cost'), count(requests.stated)],
    [t('Responses without a cost'), count(requests.unstated)],
    [t('Responses that ended early'), count(requests.aborted)],
    [t('Refunded tokens'), count(tokens.refunded)],
    [t('Tokens of debt'), count(tokens.debt)],
    [t('Tokens above the maximum debt'), tokens.uncharged ? count(tokens.uncharged) : null],
  ];
}

/** The percentiles since startup. A percentile beyond the last bucket is unknown. */
export function latencySummary({ count: some, p50, p95, p99 }) {
  if (!some) return t('No latency was measured yet.');
  return plural(
    'Since startup: {percentiles}, of {count} request.',
    'Since startup: {percentiles}, of {count} requests.',
    some,
    { percentiles: percentiles({ p50, p95, p99 }) },
  );
}

/** The percentiles of a latency. */
export function percentiles({ p50, p95, p99 }) {
  const values = { p50: percentile(p50), p95: percentile(p95), p99: percentile(p99) };
  return t('p50 {p50}, p95 {p95}, p99 {p99}', values);
}

export function percentile(seconds) {
  return seconds === null ? t('over 60\u00a0s') : duration(seconds);
}

/** Keys with state that differs from that of a new key; in large tables, all used entries. */
export function inMemory({ live, used }) {
  return live === null || live === undefined 
    ? t('{count} used', { count: count(used) })
    : t('{count} live', { count: count(live) });
}

function breakerText({ state, 'failure-rate': failing, rejected, remaining }) {
  const parts = [word(state), t('{count} rejected', { count: count(rejected) })];
  if (failing !== null) parts.push(t('{share} fail', { share: share(failing) }));
  if (remaining) parts.push(t('next probe in {duration}', { duration: duration(remaining) }));
  return join(parts, t(', '));
}

function denialReasons({ mode, counts, 'denied-by': by }) {
  const some = Object.entries(by).filter(([, number]) => number > 0);
  if (some.length === 0 && mode === 'shadow' && counts['shadow-denied'] > 0)
    return empty(
      plural(
        'In shadow mode the rule denies nothing. It would have denied {count} request.',
        'In shadow mode the rule denies nothing. It would have denied {count} requests.',
        counts['shadow-denied'],
      ),
    );
  if (some.length === 0) return empty(t('No request was denied.'));
  return definitionList(some.map(([reason, number]) => [REASONS[reason] ?? reason, count(number)]));
}
