// Traffic: all requests with their latency, and one row per rule.

import { chart, latencyChart, sparkline } from '../chart.js';
import { chip, empty, h, renderList, panel, select, setText, set } from '../dom.js';
import { brief, count, factor, percent, quota, rate, share, word } from '../format.js';
import { join, plural, t } from '../language.js';
import { OUTCOMES, WINDOWS, recent } from '../live.js';

export const LABELS = [t('Admitted'), t('Delayed'), t('Denied'), t('In shadow')];
export const NAMES = ['admitted', 'delayed', 'denied', 'shadow'];

export function traffic({ root, live }) {
  const picture = chart(live, t('Requests per second'), [
    { name: 'admitted', label: t('Admitted') },
    { name: 'denied', label: t('Rejected') },
  ]);
  const latency = latencyChart(live, t('Latency of requests'));
  const numbers = tiles([t('Requests'), t('Admitted'), t('Rejected'), t('In flight'), t('Waiting')]);
  const rules = h('ul', { class: 'rules' });
  const none = empty(
    t('This policy has no rules.'),
    t('Every request is admitted. Add a rule to the policy file; the gateway reloads it when it changes.'),
  );
  root.append(
    h('div', { class: 'title' }, h('h1', {}, t('Traffic')), windowSelect(live)),
    numbers.element,
    panel(t('All requests'), picture.element),
    panel(t('Latency'), latencyNote(), latency.element),
    panel(t('Rules'), rules, none),
  );

  return {
    snapshot({ requests, rules: all }) {
      const [admitted, rejected] = recent(live.requests()) ?? [null, null];
      numbers.setText([
        [rate(admitted === null ? null : admitted + rejected), perSecond(requests.total)],
        [rate(admitted), perSecond(requests.admitted)],
        [rate(rejected), rejectedPerSecond(requests)],
        [count(requests['in-flight']), t('now')],
        [count(waiting(all)), t('in queues now')],
      ]);
      picture.draw(live.requests());
      latency.draw(live.latency());
      none.hidden = all.length > 0;
      renderList(
        rules,
        all,
        (rule) => rule.name,
        () => row(live),
      );
    },
  };
}

/** The unit of a rate, and the number since startup. */
export const perSecond = (total) => t('/s · {total} total', { total: brief(total) });

function rejectedPerSecond({ rejected, total }) {
  const part = share(total ? rejected / total : null);
  return t('/s · {total} total, {share}', { total: brief(rejected), share: part });
}

const waiting = (rules) => rules.reduce((sum, { queue }) => sum + (queue?.waiting ?? 0), 0);

/** The choice of the length of all charts. */
export function windowSelect(live) {
  const element = select(WINDOWS.map(([seconds, text]) => [String(seconds), text]), String(live.chosenWindow), {
    class: 'window',
    'aria-label': t('Time range of charts'),
  });
  element.addEventListener('change', () => {
    live.chosenWindow = Number(element.value);
    if (live.latest) live.dispatchEvent(new Event('snapshot'));
  });
  return element;
}

/** What a latency includes. */
export function latencyNote() {
  return h(
    'p',
    { class: 'note' },
    t('From the head of an admitted request to the last byte of its response, including time in a queue.'),
  );
}

/** Large numbers with their names. */
export function tiles(names) {
  const values = names.map(() => [h('span', {}, '–'), h('small')]);
  const element = h(
    'dl',
    { class: 'tiles' },
    names.map((name, place) => h('div', {}, h('dt', {}, name), h('dd', {}, values[place][0], ' ', values[place][1]))),
  );
  return {
    element,
    setText(entries) {
      entries.forEach(([value, more], place) => {
        setText(values[place][0], value);
        setText(values[place][1], more);
      });
    },
  };
}

function row(live) {
  const link = h('a', { class: 'rule-name' });
  const chips = h('span', { class: 'chips' });
  const about = h('p', { class: 'rule-about' });
  const picture = sparkline(live, NAMES);
  const numbers = outcomes();
  let lastKey = '';
  return {
    element: h(
      'li',
      {},
      h('div', {}, h('span', { class: 'chips' }, link, chips), about),
      picture.element,
      numbers.element,
    ),
    update(rule) {
      setText(link, rule.name);
      set(link, 'href', `#/rules/${encodeURIComponent(rule.name)}`);
      setText(
        about,
        join(
          [
            rule.match && word(rule.match),
            rule.key && rule.key !== 'all' && t('by {key}', { key: rule.key }),
            ...rule.quotas.slice(0, 2).map(quota),
            rule.quotas.length > 2 && t('{count} more', { count: count(rule.quotas.length - 2) }),
          ].filter(Boolean),
          ' · ',
        ),
      );
      const states = ruleStates(rule);
      const key = JSON.stringify(states);
      if (key !== lastKey) chips.replaceChildren(...states.map(([text, tone]) => chip(text, tone)));
      lastKey = key;
      picture.draw(live.rule(rule.name));
      numbers.setText(recent(live.rule(rule.name)), rule.counts);
    },
  };
}

/** The four outcomes of a rule: per second, and since the start. */
export function outcomes() {
  const parts = LABELS.map((label, place) => {
    const value = h('span', {}, '–');
    const total = h('small', {}, '');
    return {
      value,
      total,
      element: h('div', {}, h('dt', {}, h('i', { class: `key ${NAMES[place]}` }), label), h('dd', {}, value, total)),
    };
  });
  return {
    element: h(
      'dl',
      { class: 'outcomes' },
      parts.map(({ element }) => element),
    ),
    setText(rates, counts) {
      parts.forEach(({ value, total, element }, place) => {
        const all = counts[OUTCOMES[place]];
        element.classList.toggle('none', all === 0);
        setText(value, rates ? t('{rate}/s', { rate: rate(rates[place]) }) : '–');
        setText(total, t('{count} total', { count: brief(all) }));
      });
    },
  };
}

/** The unusual states of a rule, as `[word, tone]`. */
export function ruleStates(rule) {
  const states = [];
  if (rule.mode === 'shadow') states.push([word('shadow'), 'shadow']);
  if (rule.mode === 'off') states.push([word('off'), null]);
  if (rule.percent !== null && rule.percent !== undefined)
    states.push([t('enforced for {share}', { share: percent(Number(rule.percent.toFixed(2))) }), 'shadow']);
  if (rule.breaker && rule.breaker.state !== 'closed')
    states.push([
      t('breaker {state}', { state: word(rule.breaker.state) }),
      rule.breaker.state === 'open' ? 'bad' : 'warn',
    ]);
  if (rule.feature) {
    const { name, on } = rule.feature;
    states.push([t('feature {name} {state}', { name, state: word(on ? 'on' : 'off') }), on ? null : 'bad']);
  }
  if (rule.shedding?.length > 0) states.push([t('sheds {classes}', { classes: rule.shedding.join(', ') }), 'bad']);
  if (typeof rule.scale === 'number' && rule.scale < 1) states.push([t('quotas {factor}', { factor: factor(rule.scale) }), 'warn']);
  if (rule['while-failing']?.failing > 0)
    states.push([plural('{count} failing key', '{count} failing keys', rule['while-failing'].failing), 'warn']);
  if (rule.queue?.waiting > 0) states.push([t('{count} waiting', { count: count(rule.queue.waiting) }), 'warn']);
  if (rule.table?.overflowed > 0) states.push([t('table full'), 'bad']);
  if (rule.bans > 0) states.push([t('{count} banned', { count: count(rule.bans) }), 'bad']);
  if (rule.counts.degraded > 0)
    states.push([t('{count} degraded', { count: brief(rule.counts.degraded) }), 'warn']);
  return states;
}
