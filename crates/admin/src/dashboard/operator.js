// The operator token: the page prompts for it when a request requires it.

import { ApiError, request, storeToken, token } from './api.js';
import { field, h, set, setText } from './dom.js';
import { t } from './language.js';

/** `token`: changes require a token; `open`: they require none; `disabled`: changes are disabled. */
let changes = 'token';
/** What the token permits: `read`, `operate` or `admin`; `null` if that is unknown. */
let role = null;
const ROLES = ['read', 'operate', 'admin'];
const listeners = new Set();

let pendingPrompt = null;

function setToken(value) {
  storeToken(value);
  if (!value) role = null;
  for (const listener of listeners) listener();
}

/** Prompts for a token after the gateway rejected a request without a token or with a wrong one. `null` if canceled. */
export function requestToken() {
  const why = token()
    ? t('The gateway rejected the token: it is invalid or has expired.')
    : t('This gateway requires the operator token.');
  setToken(null);
  return promptToken(why);
}

/** Stores the access to changes that the gateway reports. */
export function setChangeAccess(access) {
  if (access === changes) return;
  changes = access;
  for (const listener of listeners) listener();
}

/** Whether this listener accepts changes. */
export function acceptsChanges() {
  return changes !== 'disabled';
}

/** Whether this listener accepts changes, and the token permits those that need this role. */
export function canChange(needed = 'operate') {
  return acceptsChanges() && (role === null || ROLES.indexOf(role) >= ROLES.indexOf(needed));
}

/** Sends a change. Prompts for the token if it is required, until it is valid. `null` if canceled. */
export async function change(method, path, body) {
  let known = token();
  if (changes === 'token' && !known) known = await promptToken(t('Changes require the operator token.'));
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

/** The button that shows the access to changes, and prompts for the token or removes it. */
export function tokenButton(element) {
  const show = () => {
    const texts = {
      token: token()
        ? [t('Sign out'), t('Forget the operator token; changes are sent with it')]
        : [t('Sign in'), t('Enter the operator token')],
      open: [t('Changes allowed'), t('Every client of this listener may make changes')],
      disabled: [t('Read-only'), t('Changes are disabled on this listener')],
    };
    const [text, title] = texts[changes];
    setText(element, text);
    set(element, 'title', title);
    element.disabled = changes !== 'token';
    element.hidden = false;
  };
  element.addEventListener('click', async () => {
    if (token()) {
      setToken(null);
      // The data that was read with the token disappears too.
      location.reload();
    } else if (await promptToken(t('With the operator token you can read, ban, reset and promote.'))) location.reload();
  });
  listeners.add(show);
  if (token()) checkToken(token()).then(() => listeners.forEach((listener) => listener()));
  return show;
}

/** Prompts for the token until it is valid, and stores it. Concurrent calls share one dialog. `null` if it is closed. */
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
    const problem = await checkToken(input.value.trim());
    if (problem) {
      setText(wrong, problem);
      input.select();
      return false;
    }
    setToken(input.value.trim());
    return true;
  };
  const fields = [field(t('Token'), input, t('It is stored in this tab until the tab is closed.')), wrong];
  return (await dialog(t('Operator token'), why, t('Continue'), { fields, validate, focus: input })) ? token() : null;
}

/** Asks for confirmation of a change with an immediate effect. Returns whether the user confirmed it. */
export function confirmAction(title, why, action) {
  return dialog(title, why, action);
}

/** Shows a dialog until `action` succeeds in `validate`, or the user cancels. Returns whether it succeeded. */
function dialog(title, why, action, { fields = [], validate = () => true, focus } = {}) {
  const element = document.getElementById('ask');
  const yes = h('button', { type: 'submit', class: 'main' }, action);
  const no = h('button', { type: 'button', on: { click: () => element.close('') } }, t('Cancel'));
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
    const response = await request('GET', 'api/v1/token', { secret: value });
    ({ role } = await response.json());
    return null;
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    return error.status === 401 ? t('Invalid operator token.') : error.message;
  }
}
