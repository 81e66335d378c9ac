// What needs attention: a list of alerts above every view, and numbers in the navigation.

import { h, renderList, set, setText } from './dom.js';
import { count, share } from './format.js';

const OPEN_STATES = ['open', 'half-open', 'forced-open'];

/** The alerts of a snapshot: `[{ tone, text, href }]`, the most urgent first. */
export function findAlerts({ policy, upstreams, stores, rules, load, features }) {
  const found = [];
  const add = (tone, text, href) => found.push({ tone, text, href });
  if (policy.error) add('bad', 'The policy file changed but is invalid; the previous policy stays in force.', '#/policy');
  for (const { name, servers } of upstreams) {
    const failed = servers.filter(({ health }) => health !== 'healthy').map(({ address }) => address);
    if (servers.length > 0 && failed.length === servers.length)
      add('bad', `Upstream ${name}: no server is available.`, '#/health');
    else if (failed.length > 0)
      add('warn', `Upstream ${name}: ${failed.length} of ${servers.length} servers down: ${failed.join(', ')}.`, '#/health');
    for (const { address, breaker } of servers)
      if (OPEN_STATES.includes(breaker?.state)) add('warn', `Breaker of server ${address}: ${breaker.state}.`, '#/health');
  }
  for (const { name, health, 'last-error': reason } of stores)
    if (health !== 'available') add('bad', `Store ${name} is unavailable${reason ? `: ${reason}` : '.'}`, '#/health');
  if (load?.level === 'critical') add('bad', `The load is critical: ${share(load.percent / 100)}.`, '#/health');
  for (const { name, breaker } of rules)
    if (OPEN_STATES.includes(breaker?.state))
      add('warn', `Breaker of rule ${name}: ${breaker.state}.`, `#/rules/${encodeURIComponent(name)}`);
  const off = features.filter(({ on }) => !on).map(({ name }) => name);
  if (off.length > 0) add('warn', `Off: ${off.length > 1 ? 'features' : 'feature'} ${off.join(', ')}.`, '#/health');
  const urgency = ({ tone }) => (tone === 'bad' ? 0 : 1);
  return found.sort((a, b) => urgency(a) - urgency(b));
}

/** Shows the alerts in `list`. */
export function showAlerts(list, alerts) {
  set(list, 'hidden', alerts.length === 0);
  renderList(
    list,
    alerts,
    ({ text, href }) => `${href} ${text}`,
    ({ text, href }) => {
      const element = h('li', {}, h('a', { href }, text));
      return { element, update: ({ tone }) => set(element, 'data-tone', tone) };
    },
  );
}

/** `2 servers down`; `null` for none. */
function amount(number, noun, state = '') {
  return number === 0 ? null : `${count(number)} ${noun}${number === 1 ? '' : 's'} ${state}`.trim();
}

/** The numbers of the navigation, by path: `{ number, text, tone }`. */
export function findBadges({ upstreams, stores, bans, policy }, denied) {
  const down = upstreams.flatMap(({ servers }) => servers).filter(({ health }) => health !== 'healthy').length;
  const unavailable = stores.filter(({ health }) => health !== 'available').length;
  return {
    denials: { number: denied, text: `${count(denied)} in the last minute`, tone: 'warn' },
    health: { number: down + unavailable, text: [amount(down, 'server', 'down'), amount(unavailable, 'store', 'unavailable')].filter(Boolean).join(', '), tone: 'bad' },
    bans: { number: bans, text: amount(bans, 'ban'), tone: null },
    policy: { number: policy.error ? 1 : 0, text: 'rejected', tone: 'bad' },
  };
}

/** A number in a link of the navigation, and its text for screen readers. It is hidden while the number is zero. */
export function badge() {
  const number = h('span', { class: 'badge', 'aria-hidden': 'true', hidden: true });
  const text = h('span', { class: 'visually-hidden' });
  return {
    elements: [number, text],
    show(value) {
      set(number, 'hidden', !value?.number);
      set(number, 'data-tone', value?.tone);
      setText(number, value?.number ? count(value.number) : '');
      setText(text, value?.number ? ` (${value.text})` : '');
    },
  };
}
