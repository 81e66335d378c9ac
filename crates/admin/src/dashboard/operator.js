// Who may read and change something: the token of operators, asked for when it is needed.

import { ApiError, request, storeToken, token } from './api.js';
import { field, h, setText } from './dom.js';

/** `token`: changes need one; `open`: they need none; `never`: they are not taken here. */
let changes = 'token';
const listeners = new Set();

let pendingPrompt = null;

function setToken(value) {
  storeToken(value);
  for (const listener of listeners) listener();
}

/** The gateway does not answer without a token, or not with this one: asks for another. `null` where nobody knows it. */
export function requestToken() {
  const why = token()
    ? 'The token was not accepted: it is wrong, or has expired.'
    : 'This gateway is read and changed with the token of operators.';
  setToken(null);
  return promptToken(why);
}

/** What the gateway says of changes. */
export function setChangeAccess(access) {
  if (access === changes) return;
  changes = access;
  for (const listener of listeners) listener();
}

/** Whether changes are taken here at all. */
export function canChange() {
  return changes !== 'never';
}

/** Sends a change. Asks for the token where one is needed, as often as it is wrong. `null` where nobody knows it. */
export async function change(method, path, body) {
  let known = token();
  if (changes === 'token' && !known) known = await promptToken('Changes need the token of operators.');
  while (changes !== 'token' || known) {
    try {
      return await request(method, path, { body, secret: known });
    } catch (error) {
      if (error.status !== 401) throw error;
      known = await requestToken();
      if (!known) return null;
    }
  }
  return null;
}

/** The button that says who you are, and asks for the token or forgets it. */
export function tokenButton(element) {
  const show = () => {
    const text = { token: token() ? 'Forget token' : 'Give token', open: 'Changes are open', never: 'Read-only' };
    setText(element, text[changes]);
    element.title = {
      token: token() ? 'Changes are sent with your token' : 'Give the token of operators',
      open: 'Whoever reaches this page may change something',
      never: 'Changes are not taken on this listener',
    }[changes];
    element.disabled = changes !== 'token';
    element.hidden = false;
  };
  element.addEventListener('click', async () => {
    if (token()) {
      setToken(null);
      // What was read with it is gone, too.
      location.reload();
    } else if (await promptToken('With the token of operators you can read, ban, reset and promote.')) location.reload();
  });
  listeners.add(show);
  return show;
}

/** Asks for the token until it is right, and keeps it; once at a time. `null` where the dialog is closed. */
function promptToken(why) {
  pendingPrompt ??= showTokenDialog(why).finally(() => {
    pendingPrompt = null;
  });
  return pendingPrompt;
}

async function showTokenDialog(why) {
  const input = h('input', { type: 'password', autocomplete: 'off', required: true, spellcheck: 'false' });
  const wrong = h('p', { class: 'wrong', role: 'alert' });
  const validate = async () => {
    setText(wrong, '');
    const refused = await checkToken(input.value.trim());
    if (refused) {
      setText(wrong, refused);
      input.select();
      return false;
    }
    setToken(input.value.trim());
    return true;
  };
  const fields = [field('Token', input, 'It stays in this tab, until the tab is closed.'), wrong];
  return (await dialog('Token of operators', why, 'Go on', { fields, validate, focus: input })) ? token() : null;
}

/** Asks whether to go on with something that is felt at once. Whether somebody said so. */
export function confirmAction(title, why, action) {
  return dialog(title, why, action);
}

/** A question that is answered with `action`, once `validate`, or not at all. Whether it was. */
function dialog(title, why, action, { fields = [], validate = () => true, focus } = {}) {
  const element = document.getElementById('ask');
  const yes = h('button', { type: 'submit', class: 'main' }, action);
  const no = h('button', { type: 'button', on: { click: () => element.close('') } }, 'Cancel');
  return new Promise((resolve) => {
    const submit = async (event) => {
      event.preventDefault();
      if (await validate()) element.close('yes');
    };
    element.replaceChildren(
      h(
        'form',
        { on: { submit } },
        h('h2', { id: 'ask-title' }, title),
        h('p', {}, why),
        ...fields,
        h('div', { class: 'actions' }, yes, no),
      ),
    );
    element.returnValue = '';
    element.addEventListener('close', () => resolve(element.returnValue === 'yes'), { once: true });
    element.showModal();
    (focus ?? yes).focus();
  });
}

async function checkToken(value) {
  try {
    await request('GET', 'api/v1/token', { secret: value });
    return null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return error.status === 401 ? 'That is not the token of operators.' : error.message;
  }
}
