// Requests to the gateway. URLs are relative to the page, so that it also works under a path prefix of a proxy.

import { UserError, t } from './language.js';

const TOKEN_KEY = 'tidegate-token';

/** The token of this tab, or `null`. The browser removes it when the tab is closed. */
export function token() {
  return sessionStorage.getItem(TOKEN_KEY);
}

export function storeToken(value) {
  if (value) sessionStorage.setItem(TOKEN_KEY, value);
  else sessionStorage.removeItem(TOKEN_KEY);
}

/** An error response, with the detail from the gateway. */
export class ApiError extends UserError {
  constructor(status, detail) {
    super(detail);
    this.status = status;
  }
}

/** Sends a GET, and parses the response as JSON. */
export async function get(path, options = {}) {
  return (await request('GET', path, options)).json();
}

/** Sends a GET, and returns the response as text. */
export async function getText(path, options = {}) {
  return (await request('GET', path, options)).text();
}

/** Sends a request with the token of this tab, and throws an `ApiError` for an error status. */
export async function request(method, path, { body, secret = token(), signal } = {}) {
  const headers = {};
  if (body !== undefined) headers['Content-Type'] = 'application/json';
  if (secret) headers.Authorization = `Bearer ${secret}`;
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      signal,
      cache: 'no-store',
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === 'AbortError') throw error;
    throw new ApiError(0, t('The gateway is unavailable.'));
  }
  if (!response.ok) throw new ApiError(response.status, await detail(response));
  return response;
}

async function detail(response) {
  const body = await response.text().catch(() => '');
  try {
    const { detail, title } = JSON.parse(body);
    return detail ?? title ?? body;
  } catch {
    return body.trim() || t('The gateway responded with status {status}.', { status: response.status });
  }
}

/** Encodes a part of a URL. */
export const encode = encodeURIComponent;
