// The numbers of one rule in the policy file: what another value would have done, and the change.

import { encode, get, request } from '../api.js';
import { empty, definitionList, h, panel, renderList, set, setText } from '../dom.js';
import { count, dateTime, share as shareText } from '../format.js';
import { plural, t } from '../language.js';
import { canChange, change } from '../operator.js';

/** The panel. It reads the numbers again when the policy or its file changes. */
export function numbers({ notify }, rule) {
  const path = `api/v1/rules/${encode(rule)}`;
  const list = h('ul', { class: 'rules numbers' });
  const none = empty(t('The rule has no numbers to set.'));
  const failure = h('pre', { class: 'mono', lang: 'en' });
  const result = h('div', { role: 'status' });
  const element = panel(t('Numbers'), none, failure, list, result);
  element.hidden = true;
  let loaded = null;
  let closed = false;

  const show = (settings, message) => {
    element.hidden = false;
    none.hidden = settings.length > 0 || message !== '';
    failure.hidden = message === '';
    setText(failure, message);
    renderList(
      list,
      settings,
      ({ key }) => key,
      ({ key }) => row(key),
    );
  };

  const load = async () => {
    try {
      const { settings } = await get(`${path}/settings`);
      if (!closed) show(settings, '');
    } catch (error) {
      // A policy without a file has nothing to set. If the gateway is unreachable, the next snapshot loads again.
      if (error.status === 0) loaded = null;
      else if (!closed && error.status !== 422) show([], error.message);
    }
  };

  /** One number, with the field for another value. */
  function row(key) {
    const input = h('input', { 'aria-label': t('{key} of {rule}', { key, rule }), spellcheck: 'false', required: true });
    const hidden = (text) => h('span', { class: 'visually-hidden' }, text);
    const previewButton = h('button', { type: 'button' }, t('Preview'), hidden(t(' of {name}', { name: key })));
    const applyButton = h('button', { type: 'submit' }, t('Apply'), hidden(t(' to {name}', { name: key })));
    let current = null;
    const enable = () => {
      const isSame = input.value.trim() === current || input.value.trim() === '';
      set(applyButton, 'disabled', isSame || !canChange('admin'));
      set(previewButton, 'disabled', isSame);
    };
    const run = async (action) => {
      try {
        await action(input.value.trim());
      } catch (error) {
        notify(error.message, 'bad');
      }
    };
    const submit = async (event) => {
      event.preventDefault();
      await run(async (value) => {
        const response = await change('POST', `${path}/settings`, { key, value, from: current });
        if (!response) return;
        const { changed } = await response.json();
        const values = { rule, key, value };
        notify(changed ? t('Rule {rule}: {key} is {value}.', values) : t('The policy has this value already.'));
        result.replaceChildren();
      });
      await load();
    };
    previewButton.addEventListener('click', () =>
      run(async (value) => {
        const response = await request('POST', `${path}/preview`, { body: { key, value } });
        if (!closed) result.replaceChildren(comparison(await response.json()));
      }),
    );
    input.addEventListener('input', enable);
    return {
      enable,
      element: h(
        'li',
        {},
        h('code', { class: 'rule-name' }, key),
        h('form', { class: 'actions promotion', on: { submit } }, input, previewButton, applyButton),
      ),
      update({ value }) {
        // After a change of the number, by any client, the field has the current value.
        if (value !== current) input.value = value;
        current = value;
        enable();
      },
    };
  }

  return {
    element,
    snapshot({ policy }) {
      for (const row of list.rendered?.values() ?? []) row.enable();
      const state = `${policy.loaded} ${policy.error}`;
      if (state === loaded) return;
      loaded = state;
      load();
    },
    close: () => {
      closed = true;
    },
  };
}

/** What the rule did to the recorded requests, and what it would have done. */
function comparison({ key, from, to, requests, share, since, until, before, after, keys, notes }) {
  const values = { count: count(requests), since: dateTime(since), until: dateTime(until), share: shareText(share) };
  const recorded =
    share < 1
      ? t('Of {count} recorded requests of {share} of the clients, from {since} to {until}:', values)
      : t('Of {count} recorded requests, from {since} to {until}:', values);
  const change = (member) => t('{from} → {to}', { from: count(before[member]), to: count(after[member]) });
  const differences = keys.map((it) => [
    it.key,
    [
      it['newly-denied'] > 0 && plural('{count} more denied', '{count} more denied', it['newly-denied']),
      it['no-longer-denied'] > 0 &&
        plural('{count} no longer denied', '{count} no longer denied', it['no-longer-denied']),
    ]
      .filter(Boolean)
      .flatMap((text, place) => [place > 0 ? ', ' : '', text]),
  ]);
  return h(
    'div',
    {},
    h('h3', {}, t('{key}: {from} → {to}', { key, from: from ?? t('default'), to })),
    h('p', { class: 'note' }, recorded),
    definitionList([
      [t('Matching requests'), count(after.requests)],
      [t('Delayed'), change('delayed')],
      [t('Denied'), change('denied')],
      [t('Denied in shadow mode'), change('shadow-denied')],
      ...differences,
    ]),
    ...notes.map((note) => h('p', { class: 'note' }, note)),
  );
}
