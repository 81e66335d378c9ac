// Traffic: all requests with their latency, and one row per rule.

import { chart, latencyChart, sparkline } from '../chart.js';
import { chip, empty, h, renderList, panel, select, setText, set } from '../dom.js';
import { brief, count, factor, quota, rate, share } from '../format.js';
import { OUTCOMES, WINDOWS, recent } from '../live.js';

export const LABELS = ['Admitted', 'Delayed', 'Denied', 'Shadow'];
export const NAMES = ['admitted', 'delayed', 'denied', 'shadow'];

export function traffic({ root, live }) {
  const picture = chart(live, 'Requests per second', [
    { name: 'admitted', label: 'Admitted' },
    { name: 'denied', label: 'Rejected' },
  ]);
  const latency = latencyChart(live, 'Latency of requests');
  const numbers = tiles(['Requests', 'Admitted', 'Rejected', 'In flight', 'Waiting']);
  const rules = h('ul', { class: 'rules' });
  const none = empty(
    'This policy has no rules.',
    'Every request is admitted. Add a rule to the policy file; the gateway reloads it when it changes.',
  );
  root.append(
    h('div', { class: 'title' }, h('h1', {}, 'Traffic'), windowSelect(live)),
    numbers.element,
    panel('All requests', picture.element),
    panel('Latency', latencyNote(), latency.element),
    panel('Rules', rules, none),
  );

  return {
    snapshot({ requests, rules: all }) {
      const [admitted, rejected] = recent(live.requests()) ?? [null, null];
      numbers.setText([
        [rate(admitted === null ? null : admitted + rejected), `/s · ${brief(requests.total)} total`],
        [rate(admitted), `/s · ${brief(requests.admitted)} total`],
        [rate(rejected), `/s · ${brief(requests.rejected)} total, ${share(requests.total ? requests.rejected / requests.total : null)}`],
        [count(requests['in-flight']), 'now'],
        [count(waiting(all)), 'in queues now'],
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

const waiting = (rules) => rules.reduce((sum, { queue }) => sum + (queue?.waiting ?? 0), 0);

/** The choice of the length of all charts. */
export function windowSelect(live) {
  const element = select(WINDOWS.map(([seconds, text]) => [String(seconds), text]), String(live.chosenWindow), {
    class: 'window',
    'aria-label': 'Time range of charts',
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
    'From the head of an admitted request to the last byte of its response, including time in a queue.',
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
  let lastText = '';
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
        [
          rule.match,
          rule.key && rule.key !== 'all' && `by ${rule.key}`,
          ...rule.quotas.slice(0, 2).map(quota),
          rule.quotas.length > 2 && `${rule.quotas.length - 2} more`,
        ]
          .filter(Boolean)
          .join(' · '),
      );
      const states = ruleStates(rule);
      const text = JSON.stringify(states);
      if (text !== lastText) chips.replaceChildren(...states.map(([word, tone]) => chip(word, tone)));
      lastText = text;
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
        setText(value, rates ? `${rate(rates[place])}/s` : '–');
        setText(total, `${brief(all)} total`);
      });
    },
  };
}

/** The unusual states of a rule, as `[word, tone]`. */
export function ruleStates(rule) {
  const states = [];
  if (rule.mode === 'shadow') states.push(['shadow', 'shadow']);
  if (rule.mode === 'off') states.push(['off', null]);
  if (rule.percent !== null && rule.percent !== undefined)
    states.push([`enforced for ${Number(rule.percent.toFixed(2))} %`, 'shadow']);
  if (rule.breaker && rule.breaker.state !== 'closed')
    states.push([`breaker ${rule.breaker.state}`, rule.breaker.state === 'open' ? 'bad' : 'warn']);
  if (rule.feature) {
    const { name, on } = rule.feature;
    states.push([`feature ${name} ${on ? 'on' : 'off'}`, on ? null : 'bad']);
  }
  if (rule.shedding?.length > 0) states.push([`sheds ${rule.shedding.join(', ')}`, 'bad']);
  if (typeof rule.scale === 'number' && rule.scale < 1) states.push([`quotas ${factor(rule.scale)}`, 'warn']);
  if (rule['while-failing']?.failing > 0) states.push([`${count(rule['while-failing'].failing)} failing keys`, 'warn']);
  if (rule.queue?.waiting > 0) states.push([`${count(rule.queue.waiting)} waiting`, 'warn']);
  if (rule.table?.overflowed > 0) states.push(['table full', 'bad']);
  if (rule.bans > 0) states.push([`${count(rule.bans)} banned`, 'bad']);
  if (rule.counts.degraded > 0) states.push([`${brief(rule.counts.degraded)} degraded`, 'warn']);
  return states;
}
