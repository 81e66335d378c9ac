// Rules in shadow mode: the requests that they would have denied, and changes of their mode.

import { encode, get } from '../api.js';
import { sparkline } from '../chart.js';
import { chip, empty, definitionList, h, renderList, panel, setText, select, set, inlineCode } from '../dom.js';
import { count, dateTime, percent as percentText, share, word } from '../format.js';
import { LocalizedText, join, plural, t } from '../language.js';
import { recent } from '../live.js';
import { change, canChange, confirmAction } from '../operator.js';
import { topKeys } from './keys.js';
import { NAMES, outcomes, ruleStates } from './traffic.js';

const MODES = [
  ...[1, 10, 25, 50].map((part) => [`enforce ${part}`, t('Enforce for {share}', { share: percentText(part) })]),
  ['enforce', t('Enforce for all')],
  ['shadow', t('Shadow')],
  ['off', t('Off')],
];

export function shadow(page) {
  const { root, live } = page;
  const list = h('div', { class: 'view' });
  const none = empty(
    t('No rule is in shadow mode.'),
    t('A rule with `mode: shadow` checks every request and denies none. This view shows the requests that it would have denied.'),
  );
  const promotion = promotions(page);
  const isCandidate = ({ mode, percent }) => mode === 'shadow' || (percent !== null && percent !== undefined);
  root.append(
    h('h1', {}, t('Shadow and promotion')),
    h(
      'p',
      { class: 'lead' },
      t('A rule in shadow mode counts requests and denies none. When it would deny the right ones, enforce it for a part of the keys, then for all.'),
    ),
    none,
    list,
    promotion.element,
  );

  return {
    snapshot(snapshot) {
      const rules = snapshot.rules.filter(isCandidate);
      none.hidden = rules.length > 0;
      renderList(
        list,
        rules,
        ({ name }) => name,
        ({ name }) => candidate(page, name),
      );
      for (const { top } of list.rendered.values()) top.snapshot(snapshot);
      promotion.snapshot(snapshot, snapshot.rules.filter((rule) => !isCandidate(rule)));
    },
    close() {
      for (const { top } of list.rendered?.values() ?? []) top.close();
      promotion.close();
    },
  };

  /** The would-be denials of one rule, and the choice of its mode. */
  function candidate(page, name) {
    const chips = h('span', { class: 'chips' });
    const summary = h('p', { class: 'statement' });
    const picture = sparkline(live, NAMES);
    const numbers = outcomes();
    const top = topKeys(page, { rule: name, by: 'shadow-denied', limit: 5 });
    const mode = modeControl(name, promotion.apply);
    const element = panel(
      name,
      chips,
      summary,
      mode.element,
      h('div', { class: 'pair' }, picture.element, numbers.element),
      top.element,
    );
    let lastStates = '';
    return {
      element,
      top,
      update(rule) {
        const { admitted, delayed, denied, 'shadow-denied': would } = rule.counts;
        const all = admitted + delayed + denied + would;
        setText(
          summary,
          all === 0
            ? t('No matching request yet.')
            : t('Of {all} requests, {count} were admitted that it would have denied: {share}.', {
                all: count(all),
                count: count(would),
                share: share(would / all),
              }),
        );
        const states = [...ruleStates(rule), ...(rule.match ? [[word(rule.match), null]] : [])];
        if (JSON.stringify(states) !== lastStates)
          chips.replaceChildren(...states.map(([text, tone]) => chip(text, tone)));
        lastStates = JSON.stringify(states);
        mode.update(rule);
        set(mode.element, 'hidden', !promotion.hasFile());
        picture.draw(live.rule(name));
        numbers.setText(recent(live.rule(name)), rule.counts);
      },
    };
  }
}

/** Changes of modes, and their history. Without a policy file, it shows a note instead. */
function promotions({ notify, live }) {
  const rules = h('ul', { class: 'rules modes' });
  const none = empty(t('All rules are above.'));
  const changes = h('div');
  const back = h('button', { type: 'button' }, t('Roll back the last change'));
  const parts = h(
    'div',
    { class: 'pair', hidden: true },
    panel(t('Other rules'), rules, none),
    panel(t('Changes'), changes, h('div', { class: 'actions' }, back)),
  );
  const noFile = h(
    'p',
    { class: 'note', hidden: true },
    inlineCode(
      t('The policy has no file to write a change to. To change modes here, serve one: `tidegate serve policy.yaml`.'),
    ),
  );
  let loaded = null;
  let last = null;
  let closed = false;

  let others = [];

  const draw = () => {
    // The rollback of a number needs the role of its change.
    set(back, 'disabled', last === null || !canChange(last.key === 'mode' ? 'operate' : 'admin'));
    if (parts.hidden || !live.latest) return;
    set(none, 'hidden', others.length > 0);
    renderList(
      rules,
      others,
      ({ name }) => name,
      (rule) => modeRow(rule, apply),
    );
  };
  const load = async () => {
    try {
      const response = await get('api/v1/changes');
      if (closed) return;
      parts.hidden = response.file === null;
      noFile.hidden = !parts.hidden;
      last = response.changes.find(({ id }) => id === response.last) ?? null;
      changes.replaceChildren(
        response.changes.length === 0
          ? empty(t('No changes yet.'))
          : definitionList(response.changes.slice(0, 20).map((it) => [dateTime(it.time), description(it)])),
      );
      draw();
    } catch (error) {
      if (closed) return;
      // If the gateway is unreachable, the next snapshot loads again.
      if (error.status === 0) loaded = null;
      else notify(error.message, 'bad');
    }
  };
  const send = async (path, body, message) => {
    try {
      const response = await change('POST', path, body);
      if (!response) return;
      const { changed } = await response.json();
      notify(changed ? message : t('The rule is already in this mode.'));
    } catch (error) {
      notify(error.message, 'bad');
    }
    await load();
  };
  const apply = async (rule, choice) => {
    const [mode, percent] = choice.value.split(' ');
    const [, label] = MODES.find(([value]) => value === choice.value);
    const chosen = { rule: rule.name, mode: new LocalizedText((language) => label.in(language).toLowerCase()) };
    const question = consequence(rule, mode, percent);
    const action = mode === 'off' ? t('Switch off') : mode === 'shadow' ? t('Stop enforcing') : t('Put in force');
    if (question && !(await confirmAction(t('{rule}: {mode}?', chosen), question, action))) return;
    await send(
      `api/v1/rules/${encode(rule.name)}/mode`,
      { mode, ...(percent ? { percent: Number(percent) } : {}), ...(question ? { confirm: true } : {}) },
      t('Rule {rule}: {mode}.', chosen),
    );
  };
  back.addEventListener('click', async () => {
    const lastChange = last;
    const { id } = lastChange;
    const question = t('This reverts change {id}: {change}.', { id, change: description(lastChange) });
    if (!(await confirmAction(t('Roll back?'), question, t('Roll back')))) return;
    await send('api/v1/rollback', { id, confirm: true }, t('Change {id} is reverted.', { id }));
  });

  return {
    element: h('div', {}, parts, noFile),
    apply,
    /** Whether the policy has a file to change. */
    hasFile: () => !parts.hidden,
    snapshot(snapshot, rules) {
      others = rules;
      draw();
      const state = `${snapshot.policy.loaded} ${snapshot.policy.error}`;
      if (state === loaded) return;
      loaded = state;
      load();
    },
    close: () => {
      closed = true;
    },
  };
}

/** The consequence of a mode change, for its confirmation; `null` if clients do not notice it. */
function consequence({ counts, mode: now, percent: share }, mode, percent) {
  if (mode === 'off') return t('From now on the rule neither counts nor denies requests.');
  if (mode === 'shadow') {
    return now === 'enforce'
      ? plural(
          'It has denied {count} request. From now on it denies none.',
          'It has denied {count} requests. From now on it denies none.',
          counts.denied,
        )
      : null;
  }
  if (now === 'enforce' && percent && Number(percent) < (share ?? 100)) {
    return t('It is enforced for {share} of the keys. From now on it is enforced for {next} only.', {
      share: percentText(share ?? 100),
      next: percentText(percent),
    });
  }
  const would = counts['shadow-denied'];
  const all = counts.admitted + counts.delayed + counts.denied + would;
  const counted =
    all === 0
      ? t('No matching request yet.')
      : t('So far, {count} of {all} requests were admitted that it would have denied.', {
          count: count(would),
          all: count(all),
        });
  return percent
    ? t('{counted} From now on it denies them, for {share} of the keys.', { counted, share: percentText(percent) })
    : t('{counted} From now on it denies them.', { counted });
}

function description({ rule, key, from, to, reverts, by }) {
  const text = (value) => {
    if (value === null) return word('default');
    if (key !== 'mode') return value;
    const [mode, share] = value.split(' ');
    return share === undefined ? word(mode) : join([word(mode), percentText(parseFloat(share))], ' ');
  };
  const subject = key === 'mode' ? rule : `${rule} ${key}`;
  const values = { rule: subject, from: text(from), to: text(to), id: reverts, author: word(by) };
  return reverts === null
    ? t('{rule}: {from} → {to} ({author})', values)
    : t('{rule}: {from} → {to}, reverts change {id} ({author})', values);
}

/** A rule with its mode, and the choice of another one. */
function modeRow({ name }, apply) {
  const now = h('p', { class: 'rule-about' });
  const control = modeControl(name, apply);
  return {
    element: h('li', {}, h('div', {}, h('span', { class: 'rule-name' }, name), now), control.element),
    update(rule) {
      setText(now, word(rule.mode));
      control.update(rule);
    },
  };
}

/** The choice of a mode. It can be applied if it differs from the current one. */
function modeControl(name, apply) {
  const choice = select(MODES, null, { 'aria-label': t('Mode of {name}', { name }) });
  const button = h(
    'button',
    { type: 'submit' },
    t('Apply'),
    h('span', { class: 'visually-hidden' }, t(' to {name}', { name })),
  );
  let rule = null;
  let current = null;
  const submit = async (event) => {
    event.preventDefault();
    await apply(rule, choice);
  };
  const enable = () => set(button, 'disabled', !canChange() || choice.value === current);
  choice.addEventListener('change', enable);
  return {
    element: h('form', { class: 'actions promotion', on: { submit } }, choice, button),
    update(latest) {
      rule = latest;
      const { mode, percent } = latest;
      // After a change of the mode, by any client, the choice is reset to the current mode.
      const next = percent ? `${mode} ${percent}` : mode;
      if (next !== current) {
        current = next;
        choice.value = MODES.some(([value]) => value === next) ? next : mode;
      }
      enable();
    },
  };
}
