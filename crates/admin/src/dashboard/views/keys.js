// The keys with the most denials or requests.

import { encode, get } from '../api.js';
import { cardBody, cardCell, cardRow, empty, field, h, renderList, panel, setText, select, set, table } from '../dom.js';
import { count, share } from '../format.js';
import { t } from '../language.js';

/** The number of snapshots between two refreshes of the list. */
const REFRESH_INTERVAL = 3;

export function keys(page) {
  const { root, query } = page;
  const rules = select([['', t('All rules')]], '');
  const by = select(
    [
      ['denied', t('Most denied')],
      ['requests', t('Most requests')],
      ['shadow-denied', t('Most would-be denials')],
    ],
    query.get('by') ?? 'denied',
  );
  const holder = h('div');
  let top = null;
  const reload = () => {
    top?.close();
    top = topKeys(page, { rule: rules.value || null, by: by.value, limit: 50 });
    holder.replaceChildren(top.element);
    if (page.live.latest) top.snapshot(page.live.latest);
  };
  rules.addEventListener('change', reload);
  by.addEventListener('change', reload);
  root.append(
    h('h1', {}, t('Top keys')),
    h(
      'p',
      { class: 'lead' },
      t('Found by a sketch of bounded size: each count is an upper bound, and too high by at most the number after it.'),
    ),
    panel(t('Keys'), h('div', { class: 'filters' }, field(t('Rule'), rules), field(t('Order'), by)), holder),
  );

  return {
    snapshot(snapshot) {
      ruleChoices(rules, snapshot, query.get('rule'));
      if (top) top.snapshot(snapshot);
      else reload();
    },
    close: () => top?.close(),
  };
}

/** Fills a select element with the rules of the policy. */
export function ruleChoices(element, { rules }, chosen) {
  const names = rules.map(({ name }) => name);
  if (element.ruleNames === names.join('\n')) return;
  const before = element.ruleNames === undefined ? (chosen ?? '') : element.value;
  element.ruleNames = names.join('\n');
  const first = element.options[0]?.value === '' ? [element.options[0]] : [];
  element.replaceChildren(
    ...first,
    ...names.map((name) => h('option', { value: name, selected: name === before }, name)),
  );
}

/** The title, column and empty message of each table. */
const KINDS = {
  denied: { title: t('Keys with the most denials'), column: t('Denied'), none: t('No key was denied yet.') },
  requests: { title: t('Keys with the most requests'), column: t('Requests'), none: t('No requests yet.') },
  'shadow-denied': {
    title: t('Keys with the most would-be denials'),
    column: t('Would be denied'),
    none: t('No key would have been denied yet.'),
  },
};

/** A live table of the most frequent keys. It is hidden if the gateway does not support this order. */
export function topKeys(page, { rule, by = 'denied', limit }) {
  const body = cardBody();
  const columns = [
    t('Key'),
    { name: KINDS[by].column, number: true },
    t('Share'),
    { name: h('span', { class: 'visually-hidden' }, t('Actions')) },
  ];
  const list = table(KINDS[by].title, columns, body, { cards: true });
  const none = h('div');
  const wrong = h('p', { class: 'wrong', role: 'alert' });
  const element = h('div', {}, list, none, wrong);
  list.hidden = true;
  let snapshots = 0;
  let closed = false;

  const refresh = async (snapshot) => {
    try {
      const { keys } = await get(`api/v1/top?by=${by}&limit=${limit}${rule ? `&rule=${encode(rule)}` : ''}`);
      if (closed) return;
      setText(wrong, '');
      list.hidden = keys.length === 0;
      none.replaceChildren(...(keys.length > 0 ? [] : [emptyMessage(snapshot, by)]));
      const plain = snapshot.observe?.keys === 'plain';
      // A rule without a key has nothing to ban or reset.
      const sharedKeyRules = new Set(snapshot.rules.filter(({ key }) => key === 'all').map(({ name }) => name));
      renderList(
        body,
        keys,
        (it) => `${it.rule}\n${it.key}`,
        (it) => row({ ruled: rule !== null && rule !== undefined, by, named: plain && !sharedKeyRules.has(it.rule) }),
      );
    } catch (error) {
      if (closed) return;
      element.hidden = error.status === 400;
      setText(wrong, error.status === 0 ? '' : error.message);
    }
  };
  return {
    element,
    snapshot(snapshot) {
      if (!element.hidden && snapshots++ % REFRESH_INTERVAL === 0) refresh(snapshot);
    },
    close: () => {
      closed = true;
    },
  };
}

function emptyMessage({ observe }, by) {
  if (!observe?.denials)
    return empty(
      t('Keys are not observed.'),
      t('Set `observe: { denials: 10000 }` in the policy to see the keys with the most denials.'),
    );
  return empty(KINDS[by].none);
}

function row({ ruled, by, named }) {
  const of = h('a');
  const name = h('code');
  const exact = h('span');
  const less = h('small');
  const fill = h('i');
  const percent = h('span');
  const actions = cardCell('', { class: 'actions-cell' });
  return {
    element: cardRow(
      h('th', { scope: 'row', role: 'rowheader' }, name, ruled ? null : h('div', { class: 'note' }, of)),
      cardCell(KINDS[by].column, { class: 'number' }, exact, less),
      cardCell(t('Share'), {}, percent, h('span', { class: 'bar', 'data-kind': by }, fill)),
      actions,
    ),
    update({ rule, key, count: counted, error, share: portion }) {
      setText(of, rule);
      set(of, 'href', `#/rules/${encodeURIComponent(rule)}`);
      setText(name, key);
      setText(exact, count(counted));
      setText(less, error > 0 ? ` −${count(error)}` : '');
      setText(percent, share(portion));
      fill.style.width = `${Math.min(100, portion * 100)}%`;
      if (named && !actions.firstChild) {
        actions.append(
          h(
            'a',
            { href: `#/bans?rule=${encode(rule)}&key=${encode(key)}` },
            t('Ban or reset'),
            h('span', { class: 'visually-hidden' }, ` ${key}`),
          ),
        );
      }
    },
  };
}
