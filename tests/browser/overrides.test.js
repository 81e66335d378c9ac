// The overrides of a rule, on its page.

import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { Browser, GRAFANA_TOKEN, Gateway, TOKEN, accessibilityViolations, horizontalOverflow } from './harness.js';

const MORE = 'overrides: { file: overrides.jsonl }';
const LIST = /\/api\/v1\/overrides\?/;
const USED = { user: 'alice', method: 'POST' };

let browser;

before(async () => {
  browser = await Browser.start();
});

after(() => browser.close());

afterEach(() => browser.closePages());

/** Calls the API of the gateway, as another operator. */
async function call(gateway, method, path, body) {
  const headers = { Authorization: `Bearer ${TOKEN}`, 'content-type': 'application/json' };
  const response = await fetch(`${gateway.admin}/api/v1/overrides${path}`, {
    method,
    headers,
    body: body && JSON.stringify({ rule: 'login', seconds: 3600, ...body }),
  });
  assert.equal(response.status, 200);
  return response.json();
}

const panel = (page) => page.locator('.panel', { has: page.getByRole('heading', { name: 'Overrides', exact: true }) });

test('override is set, replaced and removed by keyboard', async () => {
  const gateway = await Gateway.start({ more: MORE });
  const status = async () => (await gateway.sendRequests(1, '/login', USED)).status;
  for (const expected of [200, 200, 429]) assert.equal(await status(), expected);
  const page = await browser.open(gateway, 'rules/login');
  const own = panel(page);
  await own.getByText('No key of the rule has a quota of its own.').waitFor();
  await own.getByLabel('Key').focus();
  await page.keyboard.type('alice');
  await page.keyboard.press('Tab');
  await page.keyboard.type('9 at once');
  await page.keyboard.press('Enter');
  await own.getByRole('alert').getByText('give a rate').waitFor();
  await own.getByLabel('Quota').fill('3/h');
  await own.getByLabel('Reason').fill('until Friday');
  await page.keyboard.press('Enter');
  await page.getByText('alice has the quota 3/h.').waitFor();
  await own.getByText('set by an operator: until Friday').waitFor();
  await own.getByText('23\u00a0h').or(own.getByText('1\u00a0d')).first().waitFor();
  for (const expected of [200, 429]) assert.equal(await status(), expected);
  assert.deepEqual(await accessibilityViolations(page), []);

  // Another operator changes it between the list and the form.
  await page.route(LIST, (route) => route.abort());
  await call(gateway, 'PUT', '', { key: 'alice', quota: '4/h' });
  await own.getByLabel('Key').fill('alice');
  await own.getByLabel('Quota').fill('8/h');
  await own.getByRole('button', { name: 'Set the override' }).click();
  await own.getByRole('alert').getByText('has set it to 4/h').waitFor();
  await page.unroute(LIST);
  await own.locator('td code', { hasText: '4/h' }).waitFor();
  await own.getByRole('button', { name: 'Remove the override of alice' }).press('Enter');
  await page.getByText('The override of alice is removed.').waitFor();
  await own.getByText('No key of the rule has a quota of its own.').waitFor();
  assert.equal(await status(), 429);
  await gateway.close();
});

test('role that permits no changes disables the panel', async () => {
  const admin = 'admin: { listen: 127.0.0.1:0, token: $ADMIN_TOKEN, tokens: [{ name: grafana, token: $GRAFANA_TOKEN }] }';
  const gateway = await Gateway.start({ admin, more: MORE });
  await call(gateway, 'PUT', '', { key: 'alice', quota: '5/h' });
  const page = await browser.open(gateway, 'rules/login', { token: GRAFANA_TOKEN });
  await panel(page).getByText('5/h').waitFor();
  for (const name of ['Set the override', 'Remove the override of alice']) {
    assert.equal(await panel(page).getByRole('button', { name }).isDisabled(), true);
  }
  await gateway.close();
});

test('panel is accessible and in Chinese on a phone, and absent without overrides', async () => {
  const gateway = await Gateway.start({ more: MORE });
  await call(gateway, 'PUT', '', { key: 'alice', quota: '5/h', reason: '迁移' });
  const page = await browser.open(gateway, 'rules/login', { phone: true, dark: true });
  await panel(page).getByText('5/h').waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);
  assert.ok((await horizontalOverflow(page)) <= 0);
  await page.locator('#language').selectOption('zh-CN');
  const chinese = page.locator('.panel', { has: page.getByRole('heading', { name: '覆盖配额', exact: true }) });
  await chinese.getByRole('button', { name: '设置覆盖配额' }).waitFor();
  await chinese.getByText('由操作员设置：迁移').waitFor();
  assert.ok((await horizontalOverflow(page)) <= 0);
  await gateway.close();

  const without = await Gateway.start();
  const other = await browser.open(without, 'rules/login');
  await other.getByRole('heading', { name: 'Top keys' }).waitFor();
  assert.equal(await other.getByRole('heading', { name: 'Overrides' }).count(), 0);
  await without.close();
});
