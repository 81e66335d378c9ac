// The recent denials, newest first, each with a link to its details.

import { encode, get } from '../api.js';
import { cardBody, cardCell, cardRow, chip, empty, field, h, renderList, nameInput, panel, setText, select, table } from '../dom.js';
import { clock } from '../format.js';
import { ruleChoices } from './keys.js';
import { REASONS } from './rule.js';

const LIMIT = 100;

export function denials({ root, query }) {
  const rules = select([['', 'All rules']], '');
  const pauseButton = h('button', { type: 'button', 'aria-pressed': 'false' }, 'Pause');
  const body = cardBody();
  const list = table('Recent denials', ['Time', 'Reason', 'Rule', 'Client', 'Key', 'Request'], body, { cards: true });
  const none = h('div');
  const wrong = h('p', { class: 'wrong', role: 'alert' });
  list.hidden = true;

  const id = nameInput();
  const look = (event) => {
    event.preventDefault();
    location.hash = `#/why/${encode(id.value.trim().replace(/^urn:tidegate:denial:/, ''))}`;
  };
  root.append(
    h('h1', {}, 'Denials'),
    panel(
      'Why was I limited?',
      h(
        'form',
        { class: 'filters', on: { submit: look } },
        field('Denial id', id, 'From the response header Tidegate-Denial, or `instance` in the response body.'),
        h('button', { type: 'submit', class: 'main' }, 'Look up'),
      ),
    ),
    panel('Recent denials', h('div', { class: 'filters' }, field('Rule', rules), pauseButton), list, none, wrong),
  );

  let known = null;
  let isPaused = false;
  let closed = false;
  let latest = null;
  const refresh = async () => {
    try {
      const { denials } = await get(`api/v1/denials?limit=${LIMIT}${rules.value ? `&rule=${encode(rules.value)}` : ''}`);
      if (closed || isPaused) return;
      setText(wrong, '');
      list.hidden = denials.length === 0;
      none.replaceChildren(...(denials.length > 0 ? [] : [emptyMessage(latest)]));
      renderList(body, denials, ({ id }) => id, row);
    } catch (error) {
      if (!closed) setText(wrong, error.status === 0 ? '' : error.message);
      known = null;
    }
  };
  rules.addEventListener('change', refresh);
  pauseButton.addEventListener('click', () => {
    isPaused = !isPaused;
    pauseButton.setAttribute('aria-pressed', String(isPaused));
    if (!isPaused) refresh();
  });
  return {
    snapshot(snapshot) {
      latest = snapshot;
      ruleChoices(rules, snapshot, query.get('rule'));
      const { requests, rules: all, policy, uptime } = snapshot;
      const state = JSON.stringify([
        requests.rejected,
        all.map(({ counts }) => counts.denied),
        policy.version,
        uptime < 2,
      ]);
      if (state === known || isPaused) return;
      known = state;
      refresh();
    },
    close: () => {
      closed = true;
    },
  };
}

function emptyMessage({ observe }) {
  if (!observe?.denials)
    return empty(
      'Denials are not recorded.',
      'Set `observe: { denials: 10000 }` in the policy: then each denial has an id, which the response contains.',
    );
  return empty('No request was denied yet.', 'Denials appear here with their reason.');
}

function row(denial) {
  const element = cardRow(
    cardCell('Time', {}, h('time', { datetime: denial.time }, clock(denial.time))),
    cardCell(
      'Reason',
      {},
      h(
        'a',
        { href: `#/why/${encode(denial.id)}`, title: `Why was ${denial.id} denied?` },
        chip(REASONS[denial.reason] ?? denial.reason, denial.reason === 'limited' ? 'warn' : 'bad'),
      ),
    ),
    cardCell('Rule', {}, denial.rule ? h('a', { href: `#/rules/${encode(denial.rule)}` }, denial.rule) : 'an operator'),
    cardCell('Client', {}, h('code', {}, denial.client ?? '–')),
    cardCell('Key', {}, h('code', {}, denial.key ?? '–')),
    cardCell('Request', {}, h('code', {}, [denial.method, denial.path].filter(Boolean).join(' ') || '–')),
  );
  return { element };
}
