// Shared by the tests: an upstream server, the gateway in front of it, and a browser.

import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rename, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import { createRequire } from 'node:module';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { after } from 'node:test';
import { pathToFileURL } from 'node:url';

const testDirectory = import.meta.dirname;
const modules = process.env.TIDEGATE_BROWSER ?? path.join(testDirectory, '../../target/servers/browser');
const { chromium } = createRequire(path.join(modules, 'package.json'))('playwright-core');
const axe = await readFile(path.join(modules, 'node_modules/axe-core/axe.min.js'), 'utf8');
export const program = process.env.TIDEGATE ?? path.join(testDirectory, '../../target/debug/tidegate');

/** The timeout of every step, in milliseconds; much longer than a step takes. */
export const TIMEOUT = 60000;

const FLAGS = [
  '--no-sandbox',
  '--disable-gpu',
  '--disable-quic',
  '--no-first-run',
  '--disable-background-networking',
  '--disable-component-update',
  '--disable-sync',
];

export const TOKEN = 'a-token-of-operators';
/** The tokens of `$ANN_TOKEN`, with the role `operate` in tests, and of `$GRAFANA_TOKEN`, with the role `read`. */
export const ANN_TOKEN = 'a-token-of-ann';
export const GRAFANA_TOKEN = 'a-token-of-grafana';

export const ADMIN = 'admin: { listen: 127.0.0.1:0, token: $ADMIN_TOKEN }';
export const OBSERVE = 'observe: { denials: 1000, history: 1000 }';
export const RULES = `
  - { name: everybody, key: ip, quota: 1000/s }
  - { name: login, match: { method: POST, path: /login }, key: header x-user, missing: skip, quota: 2/h }
  - { name: reports, match: { path: /reports }, quota: 1 per 100ms, wait: 5s, queue: 10 }
  - { name: candidate, match: { path: /search }, key: header x-user, missing: skip, quota: 1/h, mode: shadow }
`;

/** The gateways that are not closed yet. */
const running = new Set();

// A test that failed leaves its gateway running, and node waits for it.
after(() => Promise.all([...running].map((gateway) => gateway.close())));

/** A running gateway in front of a server that responds 200 to every request. */
export class Gateway {
  #directory;
  #server;
  #port = 0;
  #child;
  #token = TOKEN;

  static async start({ admin = ADMIN, observe = OBSERVE, rules = RULES, more = '', healthCheck = false } = {}) {
    const gateway = new Gateway();
    running.add(gateway);
    await gateway.startServer();
    gateway.#directory = await mkdtemp(path.join(os.tmpdir(), 'tidegate-browser-'));
    const server = `http://127.0.0.1:${gateway.#port}`;
    const check = '{ path: /, interval: 50ms, unhealthy-threshold: 1, healthy-threshold: 1 }';
    const upstream = healthCheck ? `{ servers: "${server}", health: ${check} }` : `"${server}"`;
    gateway.policy = `listen: 127.0.0.1:0\n${admin}\n${observe}\n${more}\nupstreams: { app: ${upstream} }\nroutes: app\nrules: ${rules}`;
    await gateway.#serve();
    return gateway;
  }

  /** Starts the server behind the gateway, on the same port if it was stopped. */
  async startServer() {
    this.#server = http.createServer((request, response) => response.end('well\n')).listen(this.#port, '127.0.0.1');
    await new Promise((resolve) => this.#server.once('listening', resolve));
    this.#port = this.#server.address().port;
  }

  /** Stops the server behind the gateway. */
  async stopServer() {
    const closed = new Promise((resolve) => this.#server.close(resolve));
    this.#server.closeAllConnections();
    await closed;
  }

  get #file() {
    return path.join(this.#directory, 'policy.yaml');
  }

  async #serve() {
    await writeFile(this.#file, this.policy);
    this.#child = spawn(program, ['serve', path.basename(this.#file), '--workers', '1'], {
      cwd: this.#directory,
      env: { ...process.env, ADMIN_TOKEN: this.#token, ANN_TOKEN, GRAFANA_TOKEN },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.ended = new Promise((resolve) => this.#child.once('exit', resolve));
    let stderr = '';
    this.#child.stderr.on('data', (text) => {
      stderr += text;
    });
    for await (const line of readline.createInterface({ input: this.#child.stdout })) {
      const [name, url] = line.split(/\s+/);
      if (name === 'gateway') this.url = url;
      if (name === 'admin') {
        this.admin = url;
        return;
      }
    }
    throw new Error(`the gateway does not start: ${stderr}`);
  }

  /** Ends the process. */
  async stop() {
    this.#child.kill();
    await this.ended;
  }

  /** Starts the process again on the same addresses. */
  async restart({ token = this.#token } = {}) {
    this.#token = token;
    const [gateway, admin] = [this.url, this.admin].map((url) => url.slice('http://'.length));
    this.policy = this.policy
      .replace('listen: 127.0.0.1:0\n', `listen: ${gateway}\n`)
      .replace('listen: 127.0.0.1:0,', `listen: ${admin},`);
    await this.#serve();
  }

  /** The content of the policy file. */
  text() {
    return readFile(this.#file, 'utf8');
  }

  /** Replaces the policy file by rename, as editors do. */
  async rewrite(change) {
    this.policy = change(this.policy);
    await writeFile(`${this.#file}.new`, this.policy);
    await rename(`${this.#file}.new`, this.#file);
  }

  /** Sends requests one after the other; returns the last response. */
  async sendRequests(times, path, { user, method = 'GET' } = {}) {
    let response;
    for (let sent = 0; sent < times; sent += 1) {
      response = await fetch(this.url + path, { method, headers: user ? { 'x-user': user } : {} });
      await response.text();
    }
    return response;
  }

  /** The response of `/api/v1/status`. */
  async status() {
    const headers = { Authorization: `Bearer ${this.#token}` };
    return (await fetch(`${this.admin}/api/v1/status`, { headers })).json();
  }

  async close() {
    if (!running.delete(this)) return;
    await this.stop();
    this.#server.close();
    this.#server.closeAllConnections();
    await rm(this.#directory, { recursive: true });
  }
}

/** A browser that fails the test on errors in the console of a page. */
export class Browser {
  #browser;
  #errors = [];

  static async start() {
    const it = new Browser();
    it.#browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: FLAGS });
    return it;
  }

  /** Opens a view of the dashboard, and enters the token if the gateway requires one. */
  async open(gateway, place = '', { token = TOKEN, ...look } = {}) {
    const page = await this.openWithoutToken(gateway, place, look);
    if (gateway.policy.includes('token:')) await enterToken(page, token);
    await page.locator('#connection[data-state="live"]').waitFor();
    return page;
  }

  /** Opens a view without entering a token. */
  async openWithoutToken(gateway, place = '', look = {}) {
    const page = await this.#page(place, look);
    await page.goto(`${gateway.admin}/#/${place}`);
    return page;
  }

  /** Opens a file without a network; returns the page and the URLs that it requests. */
  openFile(file, look = {}) {
    return this.openUrl(pathToFileURL(file).href, { ...look, offline: true });
  }

  /** Opens a URL; returns the page and the URLs that it requests. */
  async openUrl(url, look = {}) {
    const page = await this.#page(url, look);
    const requests = [];
    page.on('request', (request) => requests.push(request.url()));
    await page.goto(url);
    return { page, requests };
  }

  async #page(place, { phone = false, dark = false, offline = false, locale = 'en-US' }) {
    const context = await this.#browser.newContext({
      viewport: phone ? { width: 390, height: 844 } : { width: 1280, height: 860 },
      colorScheme: dark ? 'dark' : 'light',
      locale,
      hasTouch: phone,
      reducedMotion: 'reduce',
      offline,
    });
    context.setDefaultTimeout(TIMEOUT);
    const page = await context.newPage();
    page.on('pageerror', (error) => this.#errors.push(`${place}: ${error.stack}`));
    page.on('console', (message) => {
      if (/Content Security Policy|Refused to/i.test(message.text())) this.#errors.push(`${place}: ${message.text()}`);
    });
    return page;
  }

  /** Closes all pages: an open dashboard takes processor time. */
  async closePages() {
    await Promise.all(this.#browser.contexts().map((context) => context.close()));
  }

  async close() {
    await this.#browser.close();
    if (this.#errors.length > 0) throw new Error(this.#errors.join('\n'));
  }
}

export const tokenDialog = (page) => page.getByRole('dialog', { name: 'Operator token' });

export async function enterToken(page, token) {
  await tokenDialog(page).getByLabel('Token').fill(token);
  await tokenDialog(page).getByRole('button', { name: 'Continue' }).click();
}

/** The accessibility violations that axe-core finds. */
export async function accessibilityViolations(page) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => globalThis.axe.run(document, { resultTypes: ['violations'] }));
  return violations.map(
    ({ id, nodes }) => `${id}: ${nodes.map(({ target, failureSummary }) => `${target} ${failureSummary}`).join('; ')}`,
  );
}

/** The horizontal overflow of the page, in pixels. */
export function horizontalOverflow(page) {
  return page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
}
