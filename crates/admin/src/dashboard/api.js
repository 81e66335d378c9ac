// Requests to the gateway. Addresses are relative to the page, so that it also works behind a path of another server.

const TOKEN_KEY = 'tidegate-token';

/** The token of this tab, or `null`. It is gone when the tab is closed. */
export function token() {
  return sessionStorage.getItem(TOKEN_KEY);
}

export function storeToken(value) {
  if (value) sessionStorage.setItem(TOKEN_KEY, value);
  else sessionStorage.removeItem(TOKEN_KEY);
}

/** What is wrong, in the gateway's own words. */
export class ApiError extends Error {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** What a GET answers, from JSON. */
export async function get(path, options = {}) {
  return (await request('GET', path, options)).json();
}

/** What a GET answers, as text. */
export async function getText(path, options = {}) {
  return (await request('GET', path, options)).text();
}

/** Sends a request with the token of this tab, and throws a `ApiError` unless it is well. */
export async function request(method, path, { body, secret = token(), signal } = {}) {
  const headers = {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (secret) headers.Authorization = `Bearer ${secret}`;
  let answer;
  try {
    answer = await fetch(path, {
      method,
      headers,
      signal,
      cache: 'no-store',
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, 'The gateway does not answer.');
  }
  if (!answer.ok) throw new ApiError(answer.status, await detail(answer));
  return answer;
}

async function detail(answer) {
  const body = await answer.text().catch(() => '');
  try {
    const { detail, title } = JSON.parse(body);
    return detail ?? title ?? body;
  } catch {
    return body.trim() || `The gateway answered ${answer.status}.`;
  }
}

/** A part of an address. */
export const encode = encodeURIComponent;
