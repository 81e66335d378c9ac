// Token prompts, bans and resets.

import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { Browser, Gateway, TOKEN, accessibilityViolations, enterToken, tokenDialog } from './harness.js';

let gateway;
let browser;

before(async () => {
  [gateway, browser] = await Promise.all([Gateway.start(), Browser.start()]);
});

after(async () => {
  await gateway.close();
  await browser.close();
});

afterEach(() => browser.closePages());

async function ban(page, target) {
  await page.getByLabel('Target', { exact: true }).fill(target);
  await page.getByRole('button', { name: 'Ban', exact: true }).click();
}

test('dashboard needs the token', async () => {
  const page = await browser.openWithoutToken(gateway, 'bans');
  await tokenDialog(page).waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);
  await page.keyboard.press('Escape');
  await tokenDialog(page).waitFor({ state: 'hidden' });
  await page.getByText('Locked').waitFor();
  assert.equal(await page.getByText('No bans.').isVisible(), false);

  await page.getByRole('button', { name: 'Sign in' }).click();
  await enterToken(page, 'a guess');
  await tokenDialog(page).getByText('Invalid operator token.').waitFor();
  await enterToken(page, TOKEN);
  await page.getByText('No bans.').waitFor();

  await page.getByRole('button', { name: 'Sign out' }).click();
  await tokenDialog(page).waitFor();
  assert.equal(await page.getByText('No bans.').isVisible(), false);
});

test('ban is enforced and lifted', async () => {
  const page = await browser.open(gateway, 'bans');
  await page.getByText('No bans.').waitFor();
  await page.getByLabel('Type', { exact: true }).selectOption('network');
  await page.getByLabel('Reason').fill('too curious');
  await ban(page, '127.0.0.0/8');
  await page.getByText('127.0.0.0/8 is banned for 10').waitFor();
  const row = page.getByRole('row', { name: /127\.0\.0\.0\/8 by an operator: too curious/ });
  await row.waitFor();
  assert.equal((await gateway.sendRequests(1, '/')).status, 403);
  assert.deepEqual(await accessibilityViolations(page), []);

  await row.getByRole('button', { name: 'Lift' }).click();
  await page.getByText('No bans.').waitFor();
  assert.equal((await gateway.sendRequests(1, '/')).status, 200);
});

test('wide ban needs confirmation', async () => {
  const page = await browser.open(gateway, 'bans');
  await page.getByLabel('Type', { exact: true }).selectOption('network');
  const question = page.getByRole('dialog', { name: 'Ban 0.0.0.0/0?' });
  await ban(page, '0.0.0.0/0');
  await question.getByRole('button', { name: 'Cancel' }).click();
  await page.getByText('No bans.').waitFor();
  assert.equal((await gateway.sendRequests(1, '/')).status, 200);
  await ban(page, '0.0.0.0/0');
  await question.getByRole('button', { name: 'Ban the network' }).click();
  const row = page.getByRole('row', { name: /0\.0\.0\.0\/0/ });
  await row.waitFor();
  assert.equal((await gateway.sendRequests(1, '/')).status, 403);
  await row.getByRole('button', { name: 'Lift' }).click();
  await page.getByText('No bans.').waitFor();
});

test('invalid ban shows its error', async () => {
  const page = await browser.open(gateway, 'bans');
  await ban(page, 'not-an-address');
  await page.getByRole('alert').filter({ hasText: 'is not an address' }).waitFor();
});

test('reset key is admitted again', async () => {
  const post = { user: 'alice', method: 'POST' };
  assert.equal((await gateway.sendRequests(3, '/login', post)).status, 429);
  const page = await browser.open(gateway, 'keys');
  await page
    .getByRole('row', { name: /alice login/ })
    .getByRole('link', { name: 'Ban or reset alice' })
    .click();
  const form = page.locator('.panel', { hasText: 'Reset a key' });
  assert.equal(await form.getByLabel('Key').inputValue(), 'alice');
  assert.equal(await form.getByLabel('Rule').inputValue(), 'login');
  await form.getByRole('button', { name: 'Reset' }).click();
  await page.getByText('Rule login: counters of alice reset.').waitFor();
  assert.equal((await gateway.sendRequests(1, '/login', post)).status, 200);
});

test('expired token prompts for a new one', async () => {
  const page = await browser.open(gateway, 'bans');
  await gateway.stop();
  await page.getByText('Connection lost').waitFor();
  await gateway.restart({ token: 'another-token' });
  await tokenDialog(page).getByText('it is invalid or has expired').waitFor();
  await enterToken(page, 'another-token');
  await page.locator('#connection[data-state="live"]').waitFor();

  await ban(page, '192.0.2.7');
  await page.getByText('192.0.2.7 is banned').waitFor();
  await page.getByRole('row', { name: /192\.0\.2\.7/ }).waitFor();
});
