// One denial: what happened, the state before it, and when it would pass.

import { get, part } from '../api.js';
import { empty, facts, h, panel, say, words } from '../dom.js';
import { count, length, moment, quota } from '../format.js';
import { REASONS } from './rule.js';

export function why({ root, live, argument: id }) {
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
      const denial = await get(`api/v1/denials/${part(id)}`);
      if (!closed) countdown = tell(body, denial);
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
function tell(body, denial) {
  const { quota: of, before, key } = denial;
  const parts = facts([
    ['When', moment(denial.time)],
    ['Rule', denial.rule ? h('a', { href: `#/rules/${part(denial.rule)}` }, denial.rule) : 'banned by an operator'],
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
        facts([
          ['Quota', of && h('code', {}, quota(of))],
          ['Left before it', `${count(before.remaining)} of ${count(before.limit)}`],
          ['Full again after', before['reset-after'] === null ? null : length(before['reset-after'])],
        ]),
      ]
    : [empty('No quota was asked.')];
  const when = h('p', { class: 'told' });
  body.replaceChildren(
    h('section', { class: 'panel' }, h('p', { class: 'told' }, words(denial.told))),
    h('div', { class: 'pair' }, panel('The request', parts), panel('The state before', ...state)),
    panel('When it passes', when, h('p', { class: 'note' }, denial.passes ? sentence(denial.passes) : '')),
  );
  const end = denial['passes-at'] ? Date.parse(denial['passes-at']) : null;
  return (now) => {
    if (end === null) say(when, 'That is not known.');
    else if (now >= end) say(when, `Since ${moment(end)} it would, unless the key has asked again.`);
    else say(when, `In ${length(Math.ceil((end - now) / 1000))}, at ${moment(end)}.`);
  };
}

const sentence = (text) => `${text[0].toUpperCase()}${text.slice(1)}.`;

function level({ remaining, limit }) {
  const fill = h('i');
  fill.style.width = `${limit > 0 ? Math.min(100, (remaining / limit) * 100) : 0}%`;
  return fill;
}
