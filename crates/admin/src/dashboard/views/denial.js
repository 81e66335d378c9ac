// One denial: the request, the state before it, and when a retry succeeds.

import { encode, get } from '../api.js';
import { empty, definitionList, h, panel, setText, inlineCode } from '../dom.js';
import { count, duration, dateTime, quota } from '../format.js';
import { t } from '../language.js';
import { REASONS } from './rule.js';

export function denial({ root, live, argument: id }) {
  const body = h('div', { class: 'view' });
  root.append(
    h('p', {}, h('a', { href: '#/denials' }, t('← All denials'))),
    h('h1', {}, t('Why?')),
    h('p', { class: 'lead' }, inlineCode(t('Denial `{id}`', { id }))),
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
              t('Unknown denial, or its record was evicted.'),
              t('The gateway stores the latest denials in memory; `observe` in the policy sets how many.'),
            )
          : empty(t('Cannot load the denial.'), error.message),
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
    [t('When'), dateTime(denial.time)],
    [
      t('Rule'),
      denial.rule ? h('a', { href: `#/rules/${encode(denial.rule)}` }, denial.rule) : t('banned by an operator'),
    ],
    [t('Reason'), REASONS[denial.reason] ?? denial.reason],
    [t('Credential'), denial.credential && h('code', {}, denial.credential)],
    [
      t('Key'),
      key && h('span', {}, h('code', {}, key), denial['key-hashed'] ? t(' (a hash; the key is not stored)') : ''),
    ],
    [t('Client'), denial.client && h('code', {}, denial.client)],
    [t('Request'), denial.path && h('code', {}, `${denial.method} ${denial.host ?? ''}${denial.path}`)],
    [t('Cost'), denial.cost > 1 ? count(denial.cost) : null],
    [t('Response'), denial.status ? String(denial.status) : t('connection closed')],
    [t('Store'), denial.degraded ? t('unavailable; decided without it') : null],
  ]);
  const state = before
    ? [
        h(
          'span',
          {
            class: 'bar',
            'data-kind': 'level',
            role: 'img',
            'aria-label': t('{remaining} of {limit} left', amounts(before)),
          },
          level(before),
        ),
        definitionList([
          [t('Quota'), of && h('code', {}, quota(of))],
          [t('Remaining'), t('{remaining} of {limit}', amounts(before))],
          [t('Full after'), before['reset-after'] === null ? null : duration(before['reset-after'])],
        ]),
      ]
    : [empty(t('No quota was checked.'))];
  const when = h('p', { class: 'statement' });
  body.replaceChildren(
    h('section', { class: 'panel' }, h('p', { class: 'statement' }, inlineCode(summary(denial)))),
    h('div', { class: 'pair' }, panel(t('The request'), parts), panel(t('The state before'), ...state)),
    panel(t('When a retry succeeds'), when, h('p', { class: 'note' }, retryText(denial))),
  );
  const end = denial['retry-at'] ? Date.parse(denial['retry-at']) : null;
  return (now) => {
    const time = { time: dateTime(end) };
    if (end === null) setText(when, t('Unknown.'));
    else if (now >= end) setText(when, t('Since {time}, unless this key has sent other requests.', time));
    else setText(when, t('In {duration}, at {time}.', { duration: duration(Math.ceil((end - now) / 1000)), ...time }));
  };
}

const amounts = ({ remaining, limit }) => ({ remaining: count(remaining), limit: count(limit) });

/** The rule and the cause, as in the `summary` of the API. */
function summary(denial) {
  const cause = causeText(denial);
  return denial.rule
    ? t('Denied by rule `{rule}`: {cause}.', { rule: denial.rule, cause })
    : t('Denied by an operator: {cause}.', { cause });
}

function causeText({ reason, key, quota: of, before, cost, 'max-wait': maxWait, 'retry-after': retryAfter }) {
  const client = key ? t('key {key}', { key }) : t('the request');
  if (reason === 'banned') return t('{client} is banned', { client });
  if (reason !== 'limited') return REASONS[reason] ?? reason;
  if (!of || !before) return t('{client} exceeds its quota', { client });
  const values = { client, quota: of.text, cost: count(cost), ...amounts(before) };
  if (maxWait && retryAfter !== null)
    return t('{client} would wait for {quota} longer than the {duration} that the rule allows', {
      ...values,
      duration: duration(maxWait),
    });
  return cost > 1
    ? t('{client} exceeds {quota}: {remaining} of {limit} left, the cost is {cost}', values)
    : t('{client} exceeds {quota}: {remaining} of {limit} left', values);
}

const RETRIES = {
  'no-key': t('When the request has the key of the rule.'),
  unauthenticated: t('When the request has a valid credential.'),
  'deny-list': t('When a list allows the client.'),
  banned: t('When the ban ends.'),
  overloaded: t('When the circuit breaker allows a probe, fewer requests are in flight, or the load is lower.'),
  'queue-full': t('When the queue is shorter.'),
  'store-unavailable': t('When the store is available.'),
  'feature-off': t('When the feature is on.'),
};

/** The condition for a successful retry. */
function retryText({ reason, quota: of, before, cost, 'retry-after': after }) {
  if (reason !== 'limited') return RETRIES[reason] ?? '';
  if (after !== null) return t('If this key sends nothing else first.');
  if (before && cost > before.limit) return t('Never: the cost exceeds the limit of the quota.');
  if (of?.algorithm === 'concurrency') return t('When another request of this key ends.');
  return of?.algorithm === 'total' ? t('Never: a total does not refill; reset the key to start again.') : '';
}

function level({ remaining, limit }) {
  const fill = h('i');
  fill.style.width = `${limit > 0 ? Math.min(100, (remaining / limit) * 100) : 0}%`;
  return fill;
}
