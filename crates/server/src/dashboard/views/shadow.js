// Rules that run beside the others without denying: what they would have done, and how they are put in force.

import { get, part } from '../api.js';
import { sparkline } from '../chart.js';
import { chip, empty, facts, h, keyed, panel, say, select, set, words } from '../dom.js';
import { count, moment, share } from '../format.js';
import { recent } from '../live.js';
import { change, mayAsk } from '../operator.js';
import { topKeys } from './keys.js';
import { NAMES, outcomes, troubles } from './traffic.js';

const MODES = [
  ['enforce 1', 'Enforce for 1 %'],
  ['enforce 10', 'Enforce for 10 %'],
  ['enforce 25', 'Enforce for 25 %'],
  ['enforce 50', 'Enforce for 50 %'],
  ['enforce', 'Enforce for all'],
  ['shadow', 'Shadow'],
  ['off', 'Off'],
];

export function shadow(page) {
  const { root, live } = page;
  const list = h('div', { class: 'view' });
  const none = empty(
    'No rule runs in shadow mode.',
    'A rule that says `mode: shadow` is asked about every request and denies none: here you see whom it would have denied.',
  );
  const promotion = promotions(page);
  root.append(
    h('h1', {}, 'Shadow and promotion'),
    h(
      'p',
      { class: 'lead' },
      'A rule in shadow mode counts and denies nobody. When it would deny the right ones, put it in force for a part of the keys, then for all.',
    ),
    none,
    list,
    promotion.element,
  );

  return {
    snapshot(snapshot) {
      const rules = snapshot.rules.filter(
        ({ mode, percent }) => mode === 'shadow' || (percent !== null && percent !== undefined),
      );
      none.hidden = rules.length > 0;
      keyed(
        list,
        rules,
        ({ name }) => name,
        ({ name }) => candidate(page, name),
      );
      for (const { top } of list.keyed.values()) top.snapshot(snapshot);
      promotion.snapshot(snapshot);
    },
    close() {
      for (const { top } of list.keyed?.values() ?? []) top.close();
      promotion.close();
    },
  };

  /** What one rule would have done. */
  function candidate(page, name) {
    const chips = h('span', { class: 'chips' });
    const told = h('p', { class: 'told' });
    const picture = sparkline(live, NAMES);
    const numbers = outcomes();
    const top = topKeys(page, { rule: name, by: 'shadow-denied', limit: 5 });
    const element = panel(
      name,
      chips,
      told,
      h('div', { class: 'pair' }, picture.element, numbers.element),
      top.element,
    );
    let words = '';
    return {
      element,
      top,
      update(rule) {
        const { admitted, delayed, denied, 'shadow-denied': would } = rule.counts;
        const all = admitted + delayed + denied + would;
        say(
          told,
          all === 0
            ? 'Nothing that it is about has come yet.'
            : `Of ${count(all)} requests it would have denied ${count(would)} that were let through: ${share(would / all)}.`,
        );
        const states = [...troubles(rule), ...(rule.match ? [[rule.match, null]] : [])];
        if (JSON.stringify(states) !== words) chips.replaceChildren(...states.map(([word, tone]) => chip(word, tone)));
        words = JSON.stringify(states);
        picture.draw(live.rule(name));
        numbers.say(recent(live.rule(name)), rule.counts);
      },
    };
  }
}

/** How modes are changed, and what was changed. It says so where this gateway cannot do that. */
function promotions({ notify, live }) {
  const rules = h('ul', { class: 'rules' });
  const changes = h('div');
  const back = h('button', { type: 'button' }, 'Roll back the last change');
  const parts = h(
    'div',
    { class: 'pair', hidden: true },
    panel('Put in force', rules),
    panel('Changes', changes, h('div', { class: 'actions' }, back)),
  );
  const cannot = h(
    'p',
    { class: 'note', hidden: true },
    words(
      'This gateway does not change modes from here: say `mode` in the policy file, which is read again when it changes.',
    ),
  );
  let version = null;
  let closed = false;

  const load = async () => {
    try {
      const { changes: all } = await get('api/v1/changes');
      if (closed) return;
      parts.hidden = false;
      cannot.hidden = true;
      back.disabled = all.length === 0 || !mayAsk();
      changes.replaceChildren(
        all.length === 0
          ? empty('Nothing was changed from here yet.')
          : facts(all.slice(0, 20).map((it) => [moment(it.time), description(it)])),
      );
    } catch (error) {
      if (closed) return;
      if (error.status !== 404) {
        version = null;
        return;
      }
      parts.hidden = true;
      cannot.hidden = false;
    }
  };
  const send = async (path, body, told) => {
    try {
      if (!(await change('POST', path, body))) return;
      notify(told);
    } catch (error) {
      notify(error.message, 'bad');
    }
    await load();
  };
  back.addEventListener('click', () => send('api/v1/rollback', {}, 'The last change is taken back.'));

  return {
    element: h('div', {}, parts, cannot),
    snapshot(snapshot) {
      if (!parts.hidden)
        keyed(
          rules,
          snapshot.rules,
          ({ name }) => name,
          ({ name }) => modeRow(name, send),
        );
      if (snapshot.policy.version === version) return;
      version = snapshot.policy.version;
      load().then(() => {
        if (!parts.hidden && live.latest)
          keyed(
            rules,
            live.latest.rules,
            ({ name }) => name,
            ({ name }) => modeRow(name, send),
          );
      });
    },
    close: () => {
      closed = true;
    },
  };
}

function description(change) {
  const mode = (it) =>
    it === null || it === undefined
      ? ''
      : typeof it === 'string'
        ? it
        : `${it.mode ?? ''}${it.percent ? ` ${it.percent} %` : ''}`;
  if (change.told) return change.told;
  const to = mode(change.to ?? change);
  return [change.rule, change.from ? `${mode(change.from)} → ${to}` : to, change.reason].filter(Boolean).join(': ');
}

function modeRow(name, send) {
  const now = h('p', { class: 'rule-about' });
  const choice = select(MODES, 'enforce', { 'aria-label': `Mode of ${name}` });
  const apply = h('button', { type: 'submit' }, 'Apply', h('span', { class: 'unseen' }, ` to ${name}`));
  const submit = (event) => {
    event.preventDefault();
    const [mode, percent] = choice.value.split(' ');
    send(
      `api/v1/rules/${part(name)}/mode`,
      { mode, ...(percent ? { percent: Number(percent) } : {}) },
      `Rule ${name}: ${choice.selectedOptions[0].textContent.toLowerCase()}.`,
    );
  };
  const element = h(
    'li',
    {},
    h('div', {}, h('span', { class: 'rule-name' }, name), now),
    h('form', { class: 'actions', on: { submit } }, choice, apply),
  );
  return {
    element,
    update({ mode, percent }) {
      say(
        now,
        percent === null || percent === undefined ? mode : `${mode}, for ${Number(percent.toFixed(2))} % of the keys`,
      );
      set(apply, 'disabled', !mayAsk());
    },
  };
}
