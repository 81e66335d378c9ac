// Takes the screenshots of the docs after six minutes of traffic: `node screenshots.js`, with TIDEGATE as for the tests.

import path from 'node:path';
import { setTimeout } from 'node:timers/promises';
import { Browser, Gateway } from './harness.js';

const DOCS = path.join(import.meta.dirname, '../../docs/dashboard');
/** Longer than the default range of charts. */
const MINUTES = 6;

const RULES = `
  - { name: everybody, key: ip, quota: 1000/s }
  - { name: login, match: { method: POST, path: /login }, key: header x-user, missing: skip, quota: 5/min, mode: shadow }
  - { name: search, match: { path: /search }, key: header x-user, missing: skip, quota: 60/min burst 10, mode: shadow }
  - { name: reports, match: { path: /reports }, quota: 2/s burst 1, wait: 5s, queue: 10 }
  - { name: upload, match: { path: /upload }, key: header x-user, missing: skip, quota: 30/min burst 5 }
`;

/** The paths and the requests per second of each user. */
const TRAFFIC = [
  ['nightly-job', '/search', 6],
  ['alice', '/search', 2],
  ['bob', '/search', 1.3],
  ['carol', '/upload', 0.8],
  ['dave', '/upload', 1.6],
  ['erin', '/reports', 1.5],
  ['frank', '/', 4],
];

const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0', rules: RULES });
const browser = await Browser.start();
const mode = (rule, mode) =>
  fetch(`${gateway.admin}/api/v1/rules/${rule}/mode`, { method: 'POST', body: JSON.stringify(mode) });
await mode('login', { mode: 'enforce', percent: 25 });
await mode('login', { mode: 'enforce' });

let step = 0;
const traffic = setInterval(() => {
  const load = 1 + 0.7 * Math.sin((step += 1) / 40);
  const due = TRAFFIC.filter(([, , rate]) => Math.random() < (rate * load) / 4);
  for (const [user, place] of due) gateway.sendRequests(1, place, { user }).catch(() => {});
}, 250);
await setTimeout(MINUTES * 60000);

async function take(name, place, { ready, look = {}, fullPage = true }) {
  const page = await browser.open(gateway, place, look);
  await page.getByText(ready).first().waitFor();
  // Two snapshots, for rates.
  await page.waitForResponse((response) => response.url().includes('/api/v1/series'));
  await setTimeout(3000);
  await page.screenshot({ path: path.join(DOCS, `${name}.png`), fullPage });
}

await take('traffic', '', { ready: 'everybody' });
await take('traffic-dark', '', { ready: 'everybody', look: { dark: true }, fullPage: false });
await take('health', 'health', { ready: 'Policy loaded' });
await take('shadow', 'shadow', { ready: 'login: enforce 25 % → enforce (api)' });
await take('playground', 'playground', { ready: 'fixed-window: ' });
await take('phone', 'denials', { ready: 'quota exceeded', look: { phone: true, dark: true }, fullPage: false });
clearInterval(traffic);
await gateway.close();
await browser.close();
