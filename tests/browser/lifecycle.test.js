// The dashboard during reloads, restarts and without settings.

import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { Browser, Gateway, TOKEN, accessibilityViolations, horizontalOverflow } from './harness.js';

let browser;

before(async () => {
  browser = await Browser.start();
});

after(() => browser.close());

test('dashboard shows reloaded and rejected policies', async () => {
  const gateway = await Gateway.start();
  const page = await browser.open(gateway);
  await page.getByRole('link', { name: 'candidate' }).waitFor();
  await gateway.rewrite((policy) => `${policy}  - { name: uploads, match: { method: PUT }, quota: 7/min }\n`);
  await page.getByRole('link', { name: 'uploads' }).waitFor();
  await page.getByRole('link', { name: 'Policy' }).click();
  await page.getByRole('region', { name: 'The policy as text' }).getByText('7/min').waitFor();
  await gateway.rewrite((policy) => policy.replace('7/min', '7/minn'));
  await page.getByRole('alert').filter({ hasText: 'minn' }).waitFor();
  await page.getByRole('list', { name: 'Alerts' }).getByText('The policy file changed but is invalid').waitFor();
  await page.getByRole('link', { name: 'Policy (rejected)' }).waitFor();
  await gateway.rewrite((policy) => policy.replace('7/minn', '9/min'));
  await page.getByRole('region', { name: 'The policy as text' }).getByText('9/min').waitFor();
  assert.equal(await page.getByRole('alert').filter({ hasText: 'minn' }).isVisible(), false);
  await gateway.close();
});

afterEach(() => browser.closePages());

for (const look of [
  { phone: false, dark: false },
  { phone: true, dark: true },
]) {
  test(`every view shows that a server is down ${look.phone ? 'on a phone' : 'on a desktop'}`, async () => {
    const gateway = await Gateway.start({ healthCheck: true });
    const page = await browser.open(gateway, '', look);
    const alerts = page.getByRole('list', { name: 'Alerts' });
    const link = (name) => page.getByRole('navigation').getByRole('link', { name });
    await page.getByText('In flight').first().waitFor();
    assert.equal(await alerts.isVisible(), false);

    await gateway.stopServer();
    await alerts.getByText('Upstream app: no server is available.').waitFor();
    await link('Health (1 server down)').waitFor();
    assert.deepEqual(await accessibilityViolations(page), []);
    assert.ok((await horizontalOverflow(page)) <= 0);
    await alerts.getByRole('link').click();
    await page.getByRole('heading', { name: 'Health', level: 1 }).waitFor();
    await alerts.getByText('no server is available').waitFor();

    await gateway.sendRequests(5, '/login', { user: 'alice', method: 'POST' });
    await link('Denials (3 in the last minute)').waitFor();
    const headers = { authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
    const ban = JSON.stringify({ ip: '192.0.2.7', seconds: 600 });
    await fetch(`${gateway.admin}/api/v1/bans`, { method: 'POST', headers, body: ban });
    await link('Bans (1 ban)').waitFor();
    await gateway.startServer();
    await alerts.waitFor({ state: 'hidden' });
    await link(/^Health$/).waitFor();
    await gateway.close();
  });
}

test('dashboard reconnects after gateway restart', async () => {
  const gateway = await Gateway.start();
  await gateway.sendRequests(5, '/login', { user: 'alice', method: 'POST' });
  const page = await browser.open(gateway);
  const login = page.locator('.rules > li', { has: page.getByRole('link', { name: 'login' }) });
  await login.getByText('3 total').waitFor();
  await gateway.stop();
  await page.getByText('Connection lost').waitFor();
  await login.getByText('3 total').waitFor();
  await gateway.restart();
  await page.locator('#connection[data-state="live"]').waitFor();
  await login.getByText('2 total').waitFor({ state: 'hidden' });
  await gateway.sendRequests(4, '/login', { user: 'alice', method: 'POST' });
  await login.getByText('2 total').first().waitFor();
  await gateway.close();
});

test('dashboard explains missing observe and token settings', async () => {
  const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0', observe: '', rules: '[]' });
  const page = await browser.open(gateway);
  await page.getByText('This policy has no rules.').waitFor();
  await page.getByRole('button', { name: 'Changes allowed' }).waitFor();
  await page.getByRole('link', { name: 'Keys' }).click();
  await page.getByText('Keys are not observed.').waitFor();
  await page.getByRole('link', { name: 'Denials' }).click();
  await page.getByText('Denials are not recorded.').waitFor();
  await page.getByRole('link', { name: 'Shadow' }).click();
  await page.getByText('No rule is in shadow mode.').waitFor();
  await page.getByRole('link', { name: 'Bans' }).click();
  await page.getByLabel('Target', { exact: true }).fill('192.0.2.7');
  await page.getByRole('button', { name: 'Ban', exact: true }).click();
  await page.getByRole('row', { name: /192\.0\.2\.7/ }).waitFor();
  await gateway.close();
});
