// The overrides of one rule: quotas of single keys, until they end.

import { encode, get } from '../api.js';
import { empty, field, h, nameInput, panel, renderList, select, setText, table } from '../dom.js';
import { duration } from '../format.js';
import { t } from '../language.js';
import { canChange, change } from '../operator.js';

const TIMES = [
  ['3600', t('1 hour')],
  ['86400', t('1 day')],
  ['259200', t('3 days')],
  ['604800', t('7 days')],
  ['2592000', t('30 days')],
  ['31622400', t('1 year')],
];
const PAGE = 100;

/** The panel. It is hidden while the policy keeps no overrides. */
export function overrides({ notify }, rule) {
  const body = h('tbody');
  const list = table(
    t('Overrides'),
    [
      t('Key'),
      t('Quota'),
      { name: t('Ends in'), number: true },
      { name: h('span', { class: 'visually-hidden' }, t('Actions')) },
    ],
    body,
  );
  const none = empty(t('No key of the rule has a quota of its own.'));
  const more = h('p', { class: 'note' });
  const wrong = h('p', { class: 'wrong', role: 'alert' });
  const key = nameInput('');
  // A rule that counts all requests together has one key without a name.
  key.required = false;
  const quota = h('input', { type: 'text', autocomplete: 'off', spellcheck: 'false', required: true });
  const time = select(TIMES, '86400');
  const reason = h('input', { type: 'text', maxlength: '200', autocomplete: 'off' });
  const submit = h('button', { type: 'submit', class: 'main' }, t('Set the override'));
  /** The change that each listed key has had, so that a change of another operator in between is detected. */
  let listed = new Map();
  let isStored = false;
  let closed = false;
  list.hidden = true;
  none.hidden = true;

  const set = async () => {
    const name = key.value.trim();
    const text = reason.value.trim();
    const response = await change('PUT', 'api/v1/overrides', {
      rule,
      ...(name ? { key: name } : {}),
      quota: quota.value.trim(),
      seconds: Number(time.value),
      ...(text ? { reason: text } : {}),
      ...(listed.has(name) ? { from: listed.get(name) } : {}),
    });
    if (!response) return;
    const { override } = await response.json();
    notify(t('{key} has the quota {quota}.', { key: override.key, quota: override.quota }));
    key.value = '';
    quota.value = '';
    reason.value = '';
  };
  const form = h(
    'form',
    {
      class: 'form',
      on: {
        submit: async (event) => {
          event.preventDefault();
          setText(wrong, '');
          submit.disabled = true;
          try {
            await set();
          } catch (error) {
            setText(wrong, error.message);
          }
          await refresh();
          submit.disabled = !canChange();
          submit.focus();
        },
      },
    },
    h('h3', {}, t('Add or replace an override')),
    h(
      'div',
      { class: 'fields' },
      field(t('Key'), key),
      field(t('Quota'), quota, t('For example 200/min.')),
      field(t('Duration'), time),
      field(t('Reason'), reason, t('Optional.')),
    ),
    wrong,
    h('div', { class: 'actions' }, submit),
  );
  const element = panel(t('Overrides'), list, none, more, form);
  element.hidden = true;

  const remove = async (override) => {
    try {
      const path = `api/v1/overrides/${encode(override.id)}?from=${override.change}`;
      if (!(await change('DELETE', path))) return;
      notify(t('The override of {key} is removed.', { key: override.key }));
    } catch (error) {
      notify(error.message, 'bad');
    }
    await refresh();
    submit.focus();
  };

  async function refresh() {
    try {
      const page = await get(`api/v1/overrides?rule=${encode(rule)}&limit=${PAGE}`);
      if (closed) return;
      isStored = page['stored-in'] !== null;
      element.hidden = !isStored;
      listed = new Map(page.overrides.map((override) => [override.key, override.change]));
      list.hidden = page.overrides.length === 0;
      none.hidden = page.overrides.length > 0;
      setText(more, page.next ? t('The first {count} are shown.', { count: PAGE }) : '');
      more.hidden = !page.next;
      renderList(
        body,
        page.overrides,
        ({ id, change }) => `${id} ${change}`,
        (override) => row(override, remove),
      );
    } catch (error) {
      if (!closed && error.status !== 0) setText(wrong, error.message);
    }
  }

  let tick = 0;
  return {
    element,
    snapshot() {
      submit.disabled = !canChange();
      if (tick++ % 2 === 0) refresh();
    },
    close: () => {
      closed = true;
    },
  };
}

function row(override, remove) {
  const { key, quota, by, reason, obstacle } = override;
  const remaining = h('td', { class: 'number' });
  const author = by === 'api' ? t('set by an operator') : t('set by {name}', { name: by });
  const note = reason ? t('{text}: {reason}', { text: author, reason }) : author;
  const button = h(
    'button',
    { type: 'button', class: 'small', on: { click: () => remove(override) } },
    t('Remove'),
    h('span', { class: 'visually-hidden' }, t(' the override of {key}', { key })),
  );
  return {
    element: h(
      'tr',
      {},
      h('th', { scope: 'row' }, h('code', {}, key), h('div', { class: 'note' }, note)),
      h(
        'td',
        {},
        h('code', {}, quota),
        obstacle ? h('div', { class: 'wrong' }, t('Without effect: {reason}', { reason: obstacle })) : '',
      ),
      remaining,
      h('td', { class: 'actions-cell' }, button),
    ),
    update(now) {
      setText(remaining, duration(Math.ceil(now.remaining)));
      button.disabled = !canChange();
    },
  };
}
