// The recent denials, newest first, each with a link to its details.

import { encode, get } from '../api.js';
import { cardBody, cardCell, cardRow, chip, empty, field, h, renderList, nameInput, panel, setText, select, table } from '../dom.js';
import { clock } from '../format.js';
import { t } from '../language.js';
import { ruleChoices } from './keys.js';
import { REASONS } from './rule.js';

const LIMIT = 100;

export function denials({ root, query }) {
  const rules = select([['', t('All rules')]], '');
  const pauseButton = h('button', { type: 'button', 'aria-pressed': 'false' }, t('Pause'));
  const body = cardBody();
  const columns = [t('Time'), t('Reason'), t('Rule'), t('Client'), t('Key'), t('Request')];
  const list = table(t('Recent denials'), columns, body, { cards: true });
  const none = h('div');
  const wrong = h('p', { class: 'wrong', role: 'alert' });
  list.hidden = true;

  const id = nameInput();
  const look = (event) => {
    event.preventDefault();
    location.hash = `#/why/${encode(id.value.trim().replace(/^urn:tidegate:denial:/, ''))}`;
  };
  root.append(
    h('h1', {}, t('Denials')),
    panel(
      t('Why was I limited?'),
      h(
        'form',
        { class: 'filters', on: { submit: look } },
        field(t('Denial id'), id, t('From the response header Tidegate-Denial, or `instance` in the response body.')),
        h('button', { type: 'submit', class: 'main' }, t('Look up')),
      ),
    ),
    panel(t('Recent denials'), h('div', { class: 'filters' }, field(t('Rule'), rules), pauseButton), list, none, wrong),
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
      t('Denials are not recorded.'),
      t('Set `observe: { denials: 10000 }` in the policy: then each denial has an id, which the response contains.'),
    );
  return empty(t('No request was denied yet.'), t('Denials appear here with their reason.'));
}

function row(denial) {
  const element = cardRow(
    cardCell(t('Time'), {}, h('time', { datetime: denial.time }, clock(denial.time))),
    cardCell(
      t('Reason'),
      {},
      h(
        'a',
        { href: `#/why/${encode(denial.id)}`, title: t('Why was {id} denied?', { id: denial.id }) },
        chip(REASONS[denial.reason] ?? denial.reason, denial.reason === 'limited' ? 'warn' : 'bad'),
      ),
    ),
    cardCell(
      t('Rule'),
      {},
      denial.rule ? h('a', { href: `#/rules/${encode(denial.rule)}` }, denial.rule) : t('an operator'),
    ),
    cardCell(t('Client'), {}, h('code', {}, denial.client ?? '–')),
    cardCell(t('Key'), {}, h('code', {}, denial.key ?? '–')),
    cardCell(t('Request'), {}, h('code', {}, [denial.method, denial.path].filter(Boolean).join(' ') || '–')),
  );
  return { element };
}
