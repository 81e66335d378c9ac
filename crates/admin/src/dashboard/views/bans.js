// Bans, and resets of counters.

import { encode, get } from '../api.js';
import { empty, field, h, renderList, nameInput, panel, set, setText, select, table, inlineCode } from '../dom.js';
import { count, duration } from '../format.js';
import { t } from '../language.js';
import { acceptsChanges, change, canChange, confirmAction } from '../operator.js';
import { ruleChoices } from './keys.js';

const TIMES = [
  ['60', t('1 minute')],
  ['600', t('10 minutes')],
  ['3600', t('1 hour')],
  ['86400', t('1 day')],
  ['604800', t('7 days')],
  ['2592000', t('30 days')],
];

export function bans(page) {
  const { root } = page;
  const body = h('tbody');
  const list = table(
    t('Bans'),
    [
      t('Target'),
      { name: t('Ends in'), number: true },
      { name: h('span', { class: 'visually-hidden' }, t('Actions')) },
    ],
    body,
  );
  const none = empty(t('No bans.'));
  const wrong = h('p', { class: 'wrong', role: 'alert' });
  const never = h(
    'p',
    { class: 'banner', 'data-tone': 'warn', hidden: true },
    inlineCode(
      t('Changes are disabled on this listener. Declare a token in the policy: `admin: { listen: …, token: $ADMIN_TOKEN }`.'),
    ),
  );
  const weak = h(
    'p',
    { class: 'banner', 'data-tone': 'warn', hidden: true },
    inlineCode(t('The role of your token permits no changes. They need the role `operate`.')),
  );
  list.hidden = true;
  // Hidden until the first response.
  none.hidden = true;
  let closed = false;

  const refresh = async () => {
    try {
      const { bans } = await get('api/v1/bans');
      if (closed) return;
      setText(wrong, '');
      list.hidden = bans.length === 0;
      none.hidden = bans.length > 0;
      renderList(
        body,
        bans,
        ({ id }) => id,
        (ban) => row(ban, lift),
      );
    } catch (error) {
      if (!closed) setText(wrong, error.status === 0 ? '' : error.message);
    }
  };
  const lift = async (ban) => {
    try {
      if (!(await change('DELETE', `api/v1/bans/${encode(ban.id)}`))) return;
      page.notify(t('The ban of {target} is lifted.', { target: ban.value }));
    } catch (error) {
      page.notify(error.message, 'bad');
    }
    await refresh();
    root.querySelector('h1').focus();
  };
  const ban = banForm(page, refresh);
  const reset = resetForm(page);
  root.append(
    h('h1', { tabindex: '-1' }, t('Bans and resets')),
    never,
    weak,
    panel(t('Bans'), list, none, wrong),
    h('div', { class: 'pair' }, ban.element, reset.element),
  );

  let tick = 0;
  return {
    snapshot(snapshot) {
      never.hidden = acceptsChanges();
      weak.hidden = canChange() || !acceptsChanges();
      for (const row of body.rendered?.values() ?? []) row.enable();
      ban.update(snapshot);
      reset.update(snapshot);
      if (tick++ % 2 === 0) refresh();
    },
    close: () => {
      closed = true;
    },
  };
}

function row(ban, lift) {
  const remaining = h('td', { class: 'number' });
  const button = h(
    'button',
    { type: 'button', class: 'small', on: { click: () => lift(ban) } },
    t('Lift'),
    h('span', { class: 'visually-hidden' }, t(' the ban of {target}', { target: ban.value })),
  );
  const enable = () => set(button, 'disabled', !canChange());
  enable();
  const of =
    ban.kind === 'key'
      ? [h('code', {}, ban.value), t(' in '), h('a', { href: `#/rules/${encode(ban.rule)}` }, ban.rule)]
      : [h('code', {}, ban.value)];
  return {
    element: h(
      'tr',
      {},
      h('th', { scope: 'row' }, of, h('div', { class: 'note' }, source(ban))),
      remaining,
      h('td', { class: 'actions-cell' }, button),
    ),
    enable,
    update: (now) => setText(remaining, duration(Math.ceil(now.remaining))),
  };
}

function source({ by, author: name, 'ban-count': bans, reason }) {
  const operator = name === 'api' ? t('by an operator') : t('by {name}', { name });
  const author = by === 'rule' ? t('by its rule') : operator;
  const text = bans > 1 ? t('{author}, ban number {count}', { author, count: count(bans) }) : author;
  return reason ? t('{text}: {reason}', { text, reason }) : text;
}

/** A form that sends a change, and shows its error. */
function form(title, fields, { action, rule, chosen, send }) {
  const wrong = h('p', { class: 'wrong', role: 'alert' });
  const submit = h('button', { type: 'submit', class: 'main' }, action);
  const element = h(
    'form',
    {
      class: 'form',
      on: {
        submit: async (event) => {
          event.preventDefault();
          setText(wrong, '');
          submit.disabled = true;
          try {
            await send();
          } catch (error) {
            setText(wrong, error.message);
          }
          submit.disabled = !canChange();
          submit.focus();
        },
      },
    },
    h('div', { class: 'fields' }, fields),
    wrong,
    h('div', { class: 'actions' }, submit),
  );
  return {
    element: panel(title, element),
    update(snapshot) {
      ruleChoices(rule, snapshot, chosen);
      submit.disabled = !canChange();
    },
  };
}

/** Whether a network is so large that the gateway requires a confirmation of the ban. */
function isWide(network) {
  const [address, bits] = network.split('/');
  return bits !== undefined && Number(bits) < (address.includes(':') ? 16 : 8);
}

function banForm({ query, notify }, done) {
  const kind = select(
    [
      ['ip', t('An address')],
      ['network', t('A network')],
      ['key', t('A key of a rule')],
    ],
    query.has('key') ? 'key' : 'ip',
  );
  const rule = select([], '');
  const value = nameInput(query.get('key') ?? '');
  const time = select(TIMES, '600');
  const reason = h('input', { type: 'text', maxlength: '200', autocomplete: 'off' });
  const ruled = field(t('Rule'), rule);
  const show = () => {
    ruled.hidden = kind.value !== 'key';
  };
  kind.addEventListener('change', show);
  show();
  return form(
    t('Add a ban'),
    [
      field(t('Type'), kind),
      ruled,
      field(t('Target'), value, t('192.0.2.7, 192.0.2.0/24 or alice')),
      field(t('Duration'), time),
      field(t('Reason'), reason, t('Optional.')),
    ],
    {
      action: t('Ban'),
      rule,
      chosen: query.get('rule'),
      async send() {
        const seconds = Number(time.value);
        const who = value.value.trim();
        const target = kind.value === 'key' ? { rule: rule.value, key: who } : { [kind.value]: who };
        const wide = kind.value === 'network' && isWide(who);
        const question = t('The network contains very many clients, maybe your own.');
        const isConfirmed = () => confirmAction(t('Ban {target}?', { target: who }), question, t('Ban the network'));
        if (wide && !(await isConfirmed())) return;
        const response = await change('POST', 'api/v1/bans', {
          ...target,
          seconds,
          ...(wide ? { confirm: true } : {}),
          ...(reason.value.trim() ? { reason: reason.value.trim() } : {}),
        });
        if (!response) return;
        notify(t('{target} is banned for {duration}.', { target: who, duration: duration(seconds) }));
        value.value = '';
        reason.value = '';
        await done();
      },
    },
  );
}

function resetForm({ query, notify }) {
  const rule = select([], '');
  const key = nameInput(query.get('key') ?? '');
  return form(t('Reset a key'), [field(t('Rule'), rule), field(t('Key'), key, t('Its counters are reset.'))], {
    action: t('Reset'),
    rule,
    chosen: query.get('rule'),
    async send() {
      const response = await change('POST', 'api/v1/reset', { rule: rule.value, key: key.value.trim() });
      if (!response) return;
      const { reset } = await response.json();
      notify(
        reset
          ? t('Rule {rule}: counters of {key} reset.', { rule: rule.value, key: key.value.trim() })
          : t('This key had no counters.'),
      );
      key.value = '';
    },
  });
}
