// Takes the screenshot of the shadow view for the docs, after a minute of traffic: `node screenshots.js`, with TIDEGATE as
// for the tests.

import path from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { Browser, Gateway, TIMEOUT } from './harness.js';

const DOCS = path.join(import.meta.dirname, '../../docs/dashboard');

const RULES = `
  - { name: login, match: { method: POST, path: /login }, key: header x-user, missing: skip, quota: 5/min, mode: shadow }
  - { name: search, match: { path: /search }, key: header x-user, missing: skip, quota: 60/min burst 10, mode: shadow }
`;

/** Requests per second of each user. */
const REQUEST_RATES = { 'nightly-job': 6, alice: 2, bob: 1.3, carol: 0.8, dave: 0.5 };

const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0', rules: RULES });
const browser = await Browser.start();
const mode = (rule, mode) =>
  fetch(`${gateway.admin}/api/v1/rules/${rule}/mode`, { method: 'POST', body: JSON.stringify(mode) });
await mode('login', { mode: 'enforce', percent: 25 });
await mode('login', { mode: 'enforce' });

const page = await browser.open(gateway, 'shadow');
await page.setViewportSize({ width: 1280, height: 900 });
const ends = performance.now() + TIMEOUT;
for (let step = 0; performance.now() < ends; step += 1) {
  const load = 1 + 0.7 * Math.sin(step / 14);
  for (const [user, rate] of Object.entries(REQUEST_RATES))
    if (Math.random() < (rate * load) / 4) await gateway.sendRequests(1, '/search', { user });
  await setTimeout(250);
}
await page.getByText('login: enforce 25 % → enforce (api)').waitFor();
await page.screenshot({ path: path.join(DOCS, 'shadow.png'), fullPage: true });
await gateway.close();
await browser.close();
