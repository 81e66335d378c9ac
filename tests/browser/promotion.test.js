// From shadow to enforce, and back.

import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import {
  ANN_TOKEN,
  Browser,
  GRAFANA_TOKEN,
  Gateway,
  TOKEN,
  accessibilityViolations,
  horizontalOverflow,
} from './harness.js';

let browser;

before(async () => {
  browser = await Browser.start();
});

after(() => browser.close());

const dialog = (page, name) => page.getByRole('dialog', { name });

async function choose(page, rule, mode) {
  await page.getByLabel(`Mode of ${rule}`).selectOption(mode);
  await page.getByRole('button', { name: `Apply to ${rule}` }).click();
}

test('mode change is applied and rolled back', async () => {
  const gateway = await Gateway.start();
  const before = await gateway.text();
  const send = async () => (await gateway.sendRequests(1, '/search', { user: 'bob' })).status;
  for (let request = 0; request < 3; request += 1) assert.equal(await send(), 200);
  const page = await browser.open(gateway, 'shadow');
  // The mode of a rule in shadow mode is changed in its own panel.
  const own = page.locator('.panel', { has: page.getByRole('heading', { name: 'candidate', exact: true }) });
  await own.getByLabel('Mode of candidate').waitFor();

  // Cancel changes nothing.
  await choose(page, 'candidate', 'enforce');
  const question = dialog(page, 'candidate: enforce for all?');
  await question.getByText('So far, 2 of 3 requests were admitted that it would have denied.').waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);
  await question.getByRole('button', { name: 'Cancel' }).click();
  assert.equal(await send(), 200);
  assert.equal(await gateway.text(), before);

  await choose(page, 'candidate', 'enforce');
  await question.getByRole('button', { name: 'Put in force' }).click();
  await page.getByText('Rule candidate: enforce for all.').waitFor();
  assert.equal(await send(), 429);
  assert.equal(await gateway.text(), before.replace('mode: shadow', 'mode: enforce'));
  await page.getByText('candidate: shadow → enforce (api)').waitFor();
  await page.getByText('No rule is in shadow mode.').waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);

  await page.getByRole('button', { name: 'Roll back the last change' }).click();
  await dialog(page, 'Roll back?').getByRole('button', { name: 'Roll back' }).click();
  await page.getByText('Change 1 is reverted.').waitFor();
  assert.equal(await send(), 200);
  assert.equal(await gateway.text(), before);
  await page.getByText('candidate: enforce → shadow, reverts change 1 (api)').waitFor();
  await page.locator('button:disabled', { hasText: 'Roll back the last change' }).waitFor();
  // The choice follows the rollback, so that "Apply" does not undo it.
  await page.waitForFunction(() => document.querySelector('[aria-label="Mode of candidate"]').value === 'shadow');
  await gateway.close();
});

afterEach(() => browser.closePages());

test('weakening a rule needs confirmation', async () => {
  const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0' });
  const before = await gateway.text();
  const page = await browser.open(gateway, 'shadow');
  for (const [mode, name] of [
    ['shadow', 'login: shadow?'],
    ['enforce 10', 'login: enforce for 10 %?'],
    ['off', 'login: off?'],
  ]) {
    await choose(page, 'login', mode);
    await dialog(page, name).getByRole('button', { name: 'Cancel' }).click();
    await dialog(page, name).waitFor({ state: 'hidden' });
  }
  assert.equal(await gateway.text(), before);
  const rejected = await fetch(`${gateway.admin}/api/v1/rules/login/mode`, {
    method: 'POST',
    headers: { 'content-type': 'application/json' },
    body: '{"mode":"shadow"}',
  });
  assert.equal(rejected.status, 409);
  assert.match(await rejected.text(), /enforced for fewer keys/);
  await choose(page, 'login', 'shadow');
  await dialog(page, 'login: shadow?').getByRole('button', { name: 'Stop enforcing' }).click();
  await page.getByText('login: enforce → shadow (api)').waitFor();
  await gateway.close();
});

test('percentage mode is set from a phone', async () => {
  const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0' });
  const page = await browser.open(gateway, 'shadow', { phone: true, dark: true });
  await choose(page, 'candidate', 'enforce 25');
  await dialog(page, 'candidate: enforce for 25 %?').getByRole('button', { name: 'Put in force' }).click();
  await page.getByText('enforced for 25 %').waitFor();
  await page.getByText('candidate: shadow → enforce 25 % (api)').waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);
  assert.ok((await horizontalOverflow(page)) <= 0);
  // The current mode cannot be applied again.
  const apply = page.getByRole('button', { name: 'Apply to candidate' });
  assert.equal(await apply.isDisabled(), true);
  await page.getByLabel('Mode of candidate').selectOption('enforce 50');
  assert.equal(await apply.isDisabled(), false);
  await page.getByLabel('Mode of candidate').selectOption('enforce 25');
  assert.equal(await apply.isDisabled(), true);
  await gateway.close();
});

test('number of a rule is previewed and set', async () => {
  const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0' });
  const before = await gateway.text();
  await gateway.sendRequests(5, '/x');
  const page = await browser.open(gateway, 'rules/everybody', { phone: true, dark: true });
  const quota = page.getByLabel('quota of everybody');
  const [preview, apply] = ['Preview of quota', 'Apply to quota'].map((name) => page.getByRole('button', { name }));
  await quota.waitFor();
  assert.deepEqual([await preview.isDisabled(), await apply.isDisabled()], [true, true]);
  await quota.fill('2/h');
  await preview.click();
  await page.getByText('3 more denied').waitFor();
  await page.getByText('Of 5 recorded requests').waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);
  assert.ok((await horizontalOverflow(page)) <= 0);
  assert.equal(await gateway.text(), before);

  await quota.fill('2/hh');
  await apply.click();
  await page.getByText('unknown period `hh`').waitFor();
  assert.equal(await gateway.text(), before);
  await quota.fill('2/h');
  await apply.press('Enter');
  await page.getByText('Rule everybody: quota is 2/h.').waitFor();
  assert.equal(await gateway.text(), before.replace('quota: 1000/s', 'quota: 2/h'));
  assert.equal((await gateway.sendRequests(3, '/x')).status, 429);
  // The field follows a rollback.
  const response = await fetch(`${gateway.admin}/api/v1/rollback`, { method: 'POST', body: '{}' });
  assert.equal(response.status, 200);
  await page.waitForFunction(() => document.querySelector('[aria-label="quota of everybody"]').value === '1000/s');
  await gateway.close();
});

test('results of a preview are in Chinese, on a light desktop', async () => {
  const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0' });
  await gateway.sendRequests(5, '/x');
  const page = await browser.open(gateway, 'rules/everybody', { locale: 'zh-CN' });
  await page.getByLabel('everybody 的 quota').fill('2/h');
  await page.getByRole('button', { name: /预览\s*：quota/ }).click();
  await page.getByRole('heading', { name: 'quota：1000/s → 2/h' }).waitFor();
  await page.getByText('多拒绝 3 个').waitFor();
  await page.getByText('记录的 5 个请求中').waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);
  assert.ok((await horizontalOverflow(page)) <= 0);
  await gateway.close();
});

test('invalid file is reported once', async () => {
  const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0' });
  const { policy } = gateway;
  await gateway.rewrite((text) => `${text}  - { name: half`);
  while ((await gateway.status()).policy.error === null);
  const page = await browser.open(gateway, 'rules/everybody');
  const requests = [];
  page.on('request', (request) => request.url().endsWith('/settings') && requests.push(request));
  const alerts = page.getByText('policy.yaml:', { exact: false });
  await alerts.first().waitFor();
  // Each snapshot advances the time of the page.
  const uptime = (await gateway.status()).uptime;
  while ((await gateway.status()).uptime < uptime + 4);
  assert.ok(requests.length <= 1, `${requests.length} requests`);
  // The numbers appear when the file is valid again.
  await gateway.rewrite(() => policy);
  await page.getByLabel('quota of everybody').waitFor();
  await gateway.close();
});

test('role of the token disables changes', async () => {
  const tokens = '[{ name: ann, token: $ANN_TOKEN, role: operate }, { name: grafana, token: $GRAFANA_TOKEN }]';
  const gateway = await Gateway.start({ admin: `admin: { listen: 127.0.0.1:0, token: $ADMIN_TOKEN, tokens: ${tokens} }` });
  await gateway.sendRequests(5, '/x');
  const isDisabled = (page, name) => page.getByRole('button', { name, exact: true }).isDisabled();
  const reader = await browser.open(gateway, 'bans', { token: GRAFANA_TOKEN });
  await reader.getByText('The role of your token permits no changes.').waitFor();
  assert.equal(await reader.getByText('Changes are disabled on this listener').isVisible(), false);
  assert.deepEqual([await isDisabled(reader, 'Ban'), await isDisabled(reader, 'Reset')], [true, true]);
  assert.deepEqual(await accessibilityViolations(reader), []);

  // `operate` permits modes, not numbers.
  const ann = await browser.open(gateway, 'rules/everybody', { token: ANN_TOKEN });
  await ann.getByLabel('quota of everybody').fill('2/h');
  assert.deepEqual([await isDisabled(ann, 'Preview of quota'), await isDisabled(ann, 'Apply to quota')], [false, true]);
  await ann.getByRole('button', { name: 'Preview of quota' }).click();
  await ann.getByText('3 more denied').waitFor();
  await ann.goto(`${gateway.admin}/#/shadow`);
  await choose(ann, 'candidate', 'enforce');
  await dialog(ann, 'candidate: enforce for all?').getByRole('button', { name: 'Put in force' }).click();
  await ann.getByText('candidate: shadow → enforce (ann)').waitFor();
  const rollback = ann.getByRole('button', { name: 'Roll back the last change' });
  await ann.locator('button:enabled', { hasText: 'Roll back the last change' }).waitFor();
  const changed = await fetch(`${gateway.admin}/api/v1/rules/everybody/settings`, {
    method: 'POST',
    headers: { Authorization: `Bearer ${TOKEN}` },
    body: '{"key":"quota","value":"500/s"}',
  });
  assert.equal(changed.status, 200);
  await ann.getByText('everybody quota: 1000/s → 500/s (api)').waitFor();
  assert.equal(await rollback.isDisabled(), true);
  await gateway.close();
});

test('edited policy is not rolled back', async () => {
  const gateway = await Gateway.start({ admin: 'admin: 127.0.0.1:0' });
  const page = await browser.open(gateway, 'shadow');
  await choose(page, 'login', 'shadow');
  await dialog(page, 'login: shadow?').getByRole('button', { name: 'Stop enforcing' }).click();
  await page.getByText('Rule login: shadow.').waitFor();
  await page.locator('button:enabled', { hasText: 'Roll back the last change' }).waitFor();
  await page.getByRole('button', { name: 'Roll back the last change' }).click();
  const text = await gateway.text();
  await gateway.rewrite(() => `# mine\n${text}`);
  await dialog(page, 'Roll back?').getByRole('button', { name: 'Roll back' }).click();
  await page.getByText('was changed in the meantime').waitFor();
  assert.ok((await gateway.text()).startsWith('# mine'));
  await gateway.close();
});
