// The load of the machine and the features, in the health view and in the view of a rule.

import assert from 'node:assert/strict';
import { mkdtemp, rename, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { Browser, Gateway, accessibilityViolations, horizontalOverflow } from './harness.js';

let browser;
let machine;

before(async () => {
  browser = await Browser.start();
  machine = await mkdtemp(path.join(os.tmpdir(), 'tidegate-machine-'));
});

after(async () => {
  await browser.close();
  await rm(machine, { recursive: true });
});

afterEach(() => browser.closePages());

const RULES = `
  - { name: search, match: { path: /search }, feature: search }
  - { name: similar, match: { path: /similar }, feature: similar }
  - { name: pages, priority: { key: header x-priority, default: low }, shed: { low: 60%, normal: 80% }, quota: 1000/s, scale: { min: x0.5, interval: 5ms } }
`;

/** Sets the memory use of the machine. The file is replaced as a whole, because the gateway reads it at any time. */
async function writeLoad(percent) {
  const next = path.join(machine, 'next');
  await writeFile(next, `MemTotal: 100000 kB\nMemAvailable: ${100000 - percent * 1000} kB\n`);
  await rename(next, path.join(machine, 'meminfo'));
}

async function start(percent, options = {}) {
  await writeLoad(percent);
  const more = `load: { signals: [memory], proc: ${machine}, cgroup: ${machine}/none, interval: 5ms, cooldown: 10ms }
features: { search: critical, similar: manual }
feature-recovery: 5ms`;
  return Gateway.start({ rules: RULES, more, ...options });
}

const panel = (page, name) => page.locator('.panel', { has: page.getByRole('heading', { name, exact: true }) });
const buttons = (page, feature) => page.getByRole('group', { name: `Feature ${feature}` });

for (const look of [
  { phone: false, dark: false },
  { phone: true, dark: true },
]) {
  test(`load and features follow the machine ${look.phone ? 'on a phone' : 'on a desktop'}`, async () => {
    const gateway = await start(95);
    const page = await browser.open(gateway, 'health', look);
    await panel(page, 'Load').getByText('critical', { exact: true }).waitFor();
    await panel(page, 'Load').getByText('95.0 % now').waitFor();
    await page.getByRole('row', { name: /memory 95\.0/ }).waitFor();
    await panel(page, 'Features').getByText('automatic, off because of the load').waitFor();
    assert.deepEqual(await accessibilityViolations(page), []);
    assert.ok((await horizontalOverflow(page)) <= 0);

    await page.goto(`${gateway.admin}/#/rules/pages`);
    await page.getByText('sheds normal, low').waitFor();
    await page.getByText('quotas x0.5').waitFor();
    assert.deepEqual(await accessibilityViolations(page), []);
    assert.ok((await horizontalOverflow(page)) <= 0);

    await writeLoad(10);
    await page.goto(`${gateway.admin}/#/health`);
    await panel(page, 'Load').getByText('relaxed', { exact: true }).waitFor();
    await panel(page, 'Features').getByText('automatic, off because of the load').waitFor({ state: 'detached' });
    await gateway.close();
  });
}

test('operator turns a feature off and back to automatic', async () => {
  const gateway = await start(10);
  const send = async () => (await gateway.sendRequests(1, '/similar')).status;
  assert.equal(await send(), 200);
  const page = await browser.open(gateway, 'health');
  const button = (name) => buttons(page, 'similar').getByRole('button', { name, exact: true });
  const pressed = (name) => page.locator('[aria-label="Feature similar"] [aria-pressed="true"]', { hasText: name });
  const question = page.getByRole('dialog', { name: 'Turn off similar?' });
  await pressed('Automatic').waitFor();

  // Cancel changes nothing.
  await button('Off').click();
  await question.waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);
  await question.getByRole('button', { name: 'Cancel' }).click();
  await question.waitFor({ state: 'hidden' });
  assert.equal(await send(), 200);

  await button('Off').click();
  await question.getByRole('button', { name: 'Turn off' }).click();
  await page.getByText('Feature similar: turned off by an operator.').waitFor();
  await pressed('Off').waitFor();
  assert.equal(await send(), 503);
  assert.deepEqual(await accessibilityViolations(page), []);

  await page.goto(`${gateway.admin}/#/rules/similar`);
  await page.getByText('feature similar off').waitFor();
  await page.locator('.facts', { hasText: 'feature off' }).waitFor();
  await page.goto(`${gateway.admin}/#/health`);

  // Turning it on needs no confirmation.
  await button('On').click();
  await page.getByText('Feature similar: turned on by an operator.').waitFor();
  assert.equal(await send(), 200);
  await button('Automatic').click();
  await page.getByText('Feature similar: automatic, on.').waitFor();
  await pressed('Automatic').waitFor();
  assert.deepEqual((await gateway.status()).features[1], {
    name: 'similar',
    on: true,
    override: 'automatic',
    cause: null,
  });
  await gateway.close();
});

test('rejected change of a feature shows its error', async () => {
  const gateway = await start(10, { admin: 'admin: 127.0.0.1:0' });
  const page = await browser.open(gateway, 'health');
  await buttons(page, 'similar').waitFor();
  await page.route('**/api/v1/features/similar', (route) =>
    route.fulfill({ status: 404, body: '{"detail":"unknown feature `similar`"}' }),
  );
  await buttons(page, 'similar').getByRole('button', { name: 'On', exact: true }).click();
  await page.locator('#notice[data-tone="bad"]', { hasText: 'unknown feature' }).waitFor();
  await gateway.close();
});
