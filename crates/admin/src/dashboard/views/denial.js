// One denial: what happened, the state before it, and when it would pass.

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
              'This denial is not known, or not any more.',
              'Only the last ones are kept, as many as the policy says under `observe`, until the gateway ends.',
            )
          : empty('It could not be fetched.', error.message),
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

/** Writes it down; answers what counts the time down. */
function render(body, denial) {
  const { quota: of, before, key } = denial;
  const parts = definitionList([
    ['When', dateTime(denial.time)],
    ['Rule', denial.rule ? h('a', { href: `#/rules/${encode(denial.rule)}` }, denial.rule) : 'banned by an operator'],
    ['Reason', REASONS[denial.why] ?? denial.why],
    [
      'Key',
      key && h('span', {}, h('code', {}, key), denial['key-hashed'] ? ' (a hash; the key itself is not kept)' : ''),
    ],
    ['Client', denial.client && h('code', {}, denial.client)],
    ['Request', denial.path && h('code', {}, `${denial.method} ${denial.host ?? ''}${denial.path}`)],
    ['Cost', denial.cost > 1 ? count(denial.cost) : null],
    ['Answered', denial.status ? String(denial.status) : 'the connection was closed'],
    ['Store', denial.degraded ? 'was away: decided without it' : null],
  ]);
  const state = before
    ? [
        h(
          'span',
          {
            class: 'bar',
            'data-kind': 'level',
            role: 'img',
            'aria-label': `${count(before.remaining)} of ${count(before.limit)} were left`,
          },
          level(before),
        ),
        definitionList([
          ['Quota', of && h('code', {}, quota(of))],
          ['Left before it', `${count(before.remaining)} of ${count(before.limit)}`],
          ['Full again after', before['reset-after'] === null ? null : duration(before['reset-after'])],
        ]),
      ]
    : [empty('No quota was asked.')];
  const when = h('p', { class: 'statement' });
  body.replaceChildren(
    h('section', { class: 'panel' }, h('p', { class: 'statement' }, inlineCode(denial.told))),
    h('div', { class: 'pair' }, panel('The request', parts), panel('The state before', ...state)),
    panel('When it passes', when, h('p', { class: 'note' }, denial.passes ? sentence(denial.passes) : '')),
  );
  const end = denial['passes-at'] ? Date.parse(denial['passes-at']) : null;
  return (now) => {
    if (end === null) setText(when, 'That is not known.');
    else if (now >= end) setText(when, `Since ${dateTime(end)} it would, unless the key has asked again.`);
    else setText(when, `In ${duration(Math.ceil((end - now) / 1000))}, at ${dateTime(end)}.`);
  };
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

function level({ remaining, limit }) {
  const fill = h('i');
  fill.style.width = `${limit > 0 ? Math.min(100, (remaining / limit) * 100) : 0}%`;
  return fill;
}
