// The dashboard during reloads, restarts and without settings.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Browser, Gateway } from './harness.js';

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
  await gateway.rewrite((policy) => policy.replace('7/minn', '9/min'));
  await page.getByRole('region', { name: 'The policy as text' }).getByText('9/min').waitFor();
  assert.equal(await page.getByRole('alert').filter({ hasText: 'minn' }).isVisible(), false);
  await gateway.close();
});

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
