// Rules in shadow mode: the requests that they would have denied, and changes of their mode.

import { encode, get } from '../api.js';
import { sparkline } from '../chart.js';
import { chip, empty, definitionList, h, renderList, panel, setText, select, set, inlineCode } from '../dom.js';
import { count, dateTime, share } from '../format.js';
import { recent } from '../live.js';
import { change, canChange, confirmAction } from '../operator.js';
import { topKeys } from './keys.js';
import { NAMES, outcomes, ruleStates } from './traffic.js';

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
    'No rule is in shadow mode.',
    'A rule with `mode: shadow` checks every request and denies none. This view shows the requests that it would have denied.',
  );
  const promotion = promotions(page);
  const isCandidate = ({ mode, percent }) => mode === 'shadow' || (percent !== null && percent !== undefined);
  root.append(
    h('h1', {}, 'Shadow and promotion'),
    h(
      'p',
      { class: 'lead' },
      'A rule in shadow mode counts requests and denies none. When it would deny the right ones, enforce it for a part of the keys, then for all.',
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
    let words = '';
    return {
      element,
      top,
      update(rule) {
        const { admitted, delayed, denied, 'shadow-denied': would } = rule.counts;
        const all = admitted + delayed + denied + would;
        setText(
          summary,
          all === 0
            ? 'No matching request yet.'
            : `Of ${count(all)} requests, ${count(would)} were admitted that it would have denied: ${share(would / all)}.`,
        );
        const states = [...ruleStates(rule), ...(rule.match ? [[rule.match, null]] : [])];
        if (JSON.stringify(states) !== words) chips.replaceChildren(...states.map(([word, tone]) => chip(word, tone)));
        words = JSON.stringify(states);
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
  const none = empty('All rules are above.');
  const changes = h('div');
  const back = h('button', { type: 'button' }, 'Roll back the last change');
  const parts = h(
    'div',
    { class: 'pair', hidden: true },
    panel('Other rules', rules, none),
    panel('Changes', changes, h('div', { class: 'actions' }, back)),
  );
  const noFile = h(
    'p',
    { class: 'note', hidden: true },
    inlineCode(
      'The policy has no file to write a change to. To change modes here, serve one: `tidegate serve policy.yaml`.',
    ),
  );
  let version = null;
  let last = null;
  let closed = false;

  let others = [];

  const draw = () => {
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
      back.disabled = last === null || !canChange();
      changes.replaceChildren(
        response.changes.length === 0
          ? empty('No changes yet.')
          : definitionList(response.changes.slice(0, 20).map((it) => [dateTime(it.time), description(it)])),
      );
      draw();
    } catch (error) {
      if (closed) return;
      version = null;
      if (error.status !== 0) notify(error.message, 'bad');
    }
  };
  const send = async (path, body, message) => {
    try {
      const response = await change('POST', path, body);
      if (!response) return;
      const { changed } = await response.json();
      notify(changed ? message : 'The rule is already in this mode.');
    } catch (error) {
      notify(error.message, 'bad');
    }
    await load();
  };
  const apply = async (rule, choice) => {
    const [mode, percent] = choice.value.split(' ');
    const chosen = choice.selectedOptions[0].textContent.toLowerCase();
    const question = consequence(rule, mode, percent);
    const action = mode === 'off' ? 'Switch off' : mode === 'shadow' ? 'Stop enforcing' : 'Put in force';
    if (question && !(await confirmAction(`${rule.name}: ${chosen}?`, question, action))) return;
    await send(
      `api/v1/rules/${encode(rule.name)}/mode`,
      { mode, ...(percent ? { percent: Number(percent) } : {}), ...(question ? { confirm: true } : {}) },
      `Rule ${rule.name}: ${chosen}.`,
    );
  };
  back.addEventListener('click', async () => {
    const lastChange = last;
    const question = `This reverts change ${lastChange.id}: ${description(lastChange)}.`;
    if (!(await confirmAction('Roll back?', question, 'Roll back'))) return;
    await send('api/v1/rollback', { id: lastChange.id, confirm: true }, `Change ${lastChange.id} is reverted.`);
  });

  return {
    element: h('div', {}, parts, noFile),
    apply,
    /** Whether the policy has a file to change. */
    hasFile: () => !parts.hidden,
    snapshot(snapshot, rules) {
      others = rules;
      draw();
      if (snapshot.policy.version === version) return;
      version = snapshot.policy.version;
      load();
    },
    close: () => {
      closed = true;
    },
  };
}

/** The consequence of a mode change, for its confirmation; `null` if clients do not notice it. */
function consequence({ counts, mode: now, percent: share }, mode, percent) {
  if (mode === 'off') return 'From now on the rule neither counts nor denies requests.';
  if (mode === 'shadow') {
    return now === 'enforce' ? `It has denied ${count(counts.denied)} requests. From now on it denies none.` : null;
  }
  if (now === 'enforce' && percent && Number(percent) < (share ?? 100)) {
    return `It is enforced for ${share ?? 100} % of the keys. From now on it is enforced for ${percent} % only.`;
  }
  const would = counts['shadow-denied'];
  const all = counts.admitted + counts.delayed + counts.denied + would;
  const counted =
    all === 0
      ? 'No matching request yet.'
      : `So far, ${count(would)} of ${count(all)} requests were admitted that it would have denied.`;
  return `${counted} From now on it denies them${percent ? `, for ${percent} % of the keys` : ''}.`;
}

function description({ rule, from, to, reverts, by }) {
  const mode = (it) => `${it.mode}${it.percent === null ? '' : ` ${it.percent} %`}`;
  const back = reverts === null ? '' : `, reverts change ${reverts}`;
  return `${rule}: ${mode(from)} → ${mode(to)}${back} (${by})`;
}

/** A rule with its mode, and the choice of another one. */
function modeRow({ name }, apply) {
  const now = h('p', { class: 'rule-about' });
  const control = modeControl(name, apply);
  return {
    element: h('li', {}, h('div', {}, h('span', { class: 'rule-name' }, name), now), control.element),
    update(rule) {
      setText(now, rule.mode);
      control.update(rule);
    },
  };
}

/** The choice of a mode. It can be applied if it differs from the current one. */
function modeControl(name, apply) {
  const choice = select(MODES, null, { 'aria-label': `Mode of ${name}` });
  const button = h('button', { type: 'submit' }, 'Apply', h('span', { class: 'visually-hidden' }, ` to ${name}`));
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
