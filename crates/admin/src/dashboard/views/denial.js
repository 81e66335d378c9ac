// One denial: the request, the state before it, and when a retry succeeds.

import { encode, get } from '../api.js';
import { empty, definitionList, h, panel, setText, inlineCode } from '../dom.js';
import { count, duration, dateTime, quota } from '../format.js';
import { REASONS } from './rule.js';

export function denial({ root, live, argument: id }) {
  const body = h('div', { class: 'view' });
  root.append(
    h('p', {}, h('a', { href: '#/denials' }, '← All denials')),
    h('h1', {}, 'Why?'),
    h('p', { class: 'lead' }, 'Denial ', h('code', {}, id)),
    body,
  );
  let countdown = null;
  let closed = false;

  const load = async () => {
    try {
      const record = await get(`api/v1/denials/${encode(id)}`);
      if (!closed) countdown = render(body, record);
    } catch (error) {
      if (closed) return;
      body.replaceChildren(
        error.status === 404
          ? empty(
              'Unknown denial, or its record was evicted.',
              'The gateway stores the latest denials in memory; `observe` in the policy sets how many.',
            )
          : empty('Cannot load the denial.', error.message),
      );
    }
  };
  load();
  return {
    snapshot: ({ time }) => countdown?.(Date.parse(time)),
    close: () => {
      closed = true;
    },
  };
}

/** Renders the denial; returns a function that updates the countdown. */
function render(body, denial) {
  const { quota: of, before, key } = denial;
  const parts = definitionList([
    ['When', dateTime(denial.time)],
    ['Rule', denial.rule ? h('a', { href: `#/rules/${encode(denial.rule)}` }, denial.rule) : 'banned by an operator'],
    ['Reason', REASONS[denial.reason] ?? denial.reason],
    [
      'Key',
      key && h('span', {}, h('code', {}, key), denial['key-hashed'] ? ' (a hash; the key is not stored)' : ''),
    ],
    ['Client', denial.client && h('code', {}, denial.client)],
    ['Request', denial.path && h('code', {}, `${denial.method} ${denial.host ?? ''}${denial.path}`)],
    ['Cost', denial.cost > 1 ? count(denial.cost) : null],
    ['Response', denial.status ? String(denial.status) : 'connection closed'],
    ['Store', denial.degraded ? 'unavailable; decided without it' : null],
  ]);
  const state = before
    ? [
        h(
          'span',
          {
            class: 'bar',
            'data-kind': 'level',
            role: 'img',
            'aria-label': `${count(before.remaining)} of ${count(before.limit)} left`,
          },
          level(before),
        ),
        definitionList([
          ['Quota', of && h('code', {}, quota(of))],
          ['Remaining', `${count(before.remaining)} of ${count(before.limit)}`],
          ['Full after', before['reset-after'] === null ? null : duration(before['reset-after'])],
        ]),
      ]
    : [empty('No quota was checked.')];
  const when = h('p', { class: 'statement' });
  body.replaceChildren(
    h('section', { class: 'panel' }, h('p', { class: 'statement' }, inlineCode(denial.summary))),
    h('div', { class: 'pair' }, panel('The request', parts), panel('The state before', ...state)),
    panel('When a retry succeeds', when, h('p', { class: 'note' }, denial.retry ? sentence(denial.retry) : '')),
  );
  const end = denial['retry-at'] ? Date.parse(denial['retry-at']) : null;
  return (now) => {
    if (end === null) setText(when, 'Unknown.');
    else if (now >= end) setText(when, `Since ${dateTime(end)}, unless this key has sent other requests.`);
    else setText(when, `In ${duration(Math.ceil((end - now) / 1000))}, at ${dateTime(end)}.`);
  };
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

function level({ remaining, limit }) {
  const fill = h('i');
  fill.style.width = `${limit > 0 ? Math.min(100, (remaining / limit) * 100) : 0}%`;
  return fill;
}
