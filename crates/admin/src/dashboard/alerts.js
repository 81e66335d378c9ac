// What needs attention: a list of alerts above every view, and numbers in the navigation.

import { h, renderList, set, setText } from './dom.js';
import { count, share, word } from './format.js';
import { join, plural, t } from './language.js';

const OPEN_STATES = ['open', 'half-open', 'forced-open'];

/** The alerts of a snapshot: `[{ tone, text, href }]`, the most urgent first. */
export function findAlerts({ policy, upstreams, stores, rules, load, features }) {
  const found = [];
  const add = (tone, text, href) => found.push({ tone, text, href });
  if (policy.error) add('bad', t('The policy file changed but is invalid; the previous policy stays in force.'), '#/policy');
  for (const { name, servers } of upstreams) {
    const failed = servers.filter(({ health }) => health !== 'healthy').map(({ address }) => address);
    if (servers.length > 0 && failed.length === servers.length)
      add('bad', t('Upstream {name}: no server is available.', { name }), '#/health');
    else if (failed.length > 0)
      add('warn', serversDown(name, failed, servers.length), '#/health');
    for (const { address, breaker } of servers)
      if (OPEN_STATES.includes(breaker?.state))
        add('warn', t('Breaker of server {address}: {state}.', { address, state: word(breaker.state) }), '#/health');
  }
  for (const { name, health, 'last-error': reason } of stores)
    if (health !== 'available') {
      const text = reason
        ? t('Store {name} is unavailable: {reason}', { name, reason })
        : t('Store {name} is unavailable.', { name });
      add('bad', text, '#/health');
    }
  if (load?.level === 'critical')
    add('bad', t('The load is critical: {load}.', { load: share(load.percent / 100) }), '#/health');
  for (const { name, breaker } of rules)
    if (OPEN_STATES.includes(breaker?.state))
      add(
        'warn',
        t('Breaker of rule {name}: {state}.', { name, state: word(breaker.state) }),
        `#/rules/${encodeURIComponent(name)}`,
      );
  const off = features.filter(({ on }) => !on).map(({ name }) => name);
  if (off.length > 0)
    add('warn', plural('Off: feature {names}.', 'Off: features {names}.', off.length, { names: off.join(', ') }), '#/health');
  const urgency = ({ tone }) => (tone === 'bad' ? 0 : 1);
  return found.sort((a, b) => urgency(a) - urgency(b));
}

function serversDown(name, failed, all) {
  return t('Upstream {name}: {failed} of {all} servers down: {addresses}.', {
    name,
    failed: count(failed.length),
    all: count(all),
    addresses: failed.join(', '),
  });
}

/** Shows the alerts in `list`. */
export function showAlerts(list, alerts) {
  set(list, 'hidden', alerts.length === 0);
  renderList(
    list,
    alerts,
    ({ text, href }) => JSON.stringify([href, text]),
    ({ text, href }) => {
      const element = h('li', {}, h('a', { href }, text));
      return { element, update: ({ tone }) => set(element, 'data-tone', tone) };
    },
  );
}

/** The numbers of the navigation, by path: `{ number, text, tone }`. */
export function findBadges({ upstreams, stores, bans, policy }, denied) {
  const down = upstreams.flatMap(({ servers }) => servers).filter(({ health }) => health !== 'healthy').length;
  const unavailable = stores.filter(({ health }) => health !== 'available').length;
  return {
    denials: { number: denied, text: t('{count} in the last minute', { count: count(denied) }), tone: 'warn' },
    health: { number: down + unavailable, text: unhealthyText(down, unavailable), tone: 'bad' },
    bans: { number: bans, text: plural('{count} ban', '{count} bans', bans), tone: null },
    policy: { number: policy.error ? 1 : 0, text: t('rejected'), tone: 'bad' },
  };
}

function unhealthyText(servers, stores) {
  const texts = [
    servers > 0 && plural('{count} server down', '{count} servers down', servers),
    stores > 0 && plural('{count} store unavailable', '{count} stores unavailable', stores),
  ];
  return join(texts.filter(Boolean), t(', '));
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
      setText(text, value?.number ? t(' ({text})', { text: value.text }) : '');
    },
  };
}
