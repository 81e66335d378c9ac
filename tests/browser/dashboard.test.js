// Each view, with real traffic.

import assert from 'node:assert/strict';
import { after, afterEach, before, test } from 'node:test';
import { Browser, Gateway, TOKEN, accessibilityViolations, enterToken, horizontalOverflow } from './harness.js';

let gateway;
let browser;
let denial;

before(async () => {
  [gateway, browser] = await Promise.all([Gateway.start(), Browser.start()]);
  await gateway.sendRequests(20, '/');
  await gateway.sendRequests(5, '/search', { user: 'bob' });
  await gateway.sendRequests(2, '/reports');
  denial = (await gateway.sendRequests(5, '/login', { user: 'alice', method: 'POST' })).headers.get('tidegate-denial');
});

after(async () => {
  await gateway.close();
  await browser.close();
});

afterEach(() => browser.closePages());

const row = (page, name) => page.locator('.rules > li', { has: page.getByRole('link', { name, exact: true }) });

test('traffic view shows live rates per rule', async () => {
  const page = await browser.open(gateway);
  const login = row(page, 'login');
  await login.getByText('3 total').waitFor();
  await login.getByText('POST /login').waitFor();
  await row(page, 'candidate').getByText('4 total').waitFor();
  await row(page, 'candidate').getByText('shadow', { exact: true }).waitFor();
  await gateway.sendRequests(1, '/login', { user: 'alice', method: 'POST' });
  await login.getByText('4 total').waitFor();

  const figure = page.getByRole('figure', { name: 'Requests per second' });
  await figure.getByText('Numbers as a table').click();
  await figure
    .getByRole('region', { name: /as a table/ })
    .locator('tbody tr')
    .first()
    .waitFor();
});

/** A response of `/api/v1/series` with an hour of steady traffic until `now`, in seconds. */
function hourOfSeries(now) {
  const times = Array.from({ length: 360 }, (_, place) => new Date((now - (359 - place) * 10) * 1000).toISOString());
  const column = (value) => times.map(() => value);
  const latency = { p50: column(0.01), p95: column(0.02), p99: column(0.05) };
  const outcomes = { admitted: column(40), delayed: column(0), denied: column(10), 'shadow-denied': column(0) };
  const rules = ['everybody', 'login', 'reports', 'candidate'].map((name) => ({ name, ...outcomes, ...latency }));
  const requests = { admitted: column(40), rejected: column(10), ...latency };
  return { step: 10, times, requests, rules, servers: [], load: [], omitted: 0 };
}

/** Waits until a path begins in the first twentieth of its chart, whose width is 600. */
async function waitUntilFull(page, path) {
  // A path has no data before the first series is drawn.
  const begins = (element) => {
    const data = element.getAttribute('d') ?? '';
    const positions = data.match(/[ML][-\d.]+/g) ?? [];
    return data !== 'M0 0' && Math.min(...positions.map((to) => Number(to.slice(1)))) < 30;
  };
  await page.waitForFunction(begins, await path.elementHandle());
}

test('charts are full when the page is opened', async () => {
  const page = await browser.openWithoutToken(gateway);
  await page.route('**/api/v1/series*', async (route) => {
    const { time } = await gateway.status();
    await route.fulfill({ json: hourOfSeries(Date.parse(time) / 1000) });
  });
  await enterToken(page, TOKEN);
  const panel = (name) => page.locator('.panel', { has: page.getByRole('heading', { name, exact: true }) });
  const area = panel('All requests').locator('.area.admitted');
  for (const range of ['Last 5 minutes', 'Last 15 minutes', 'Last hour']) {
    await page.getByLabel('Time range of charts').selectOption({ label: range });
    await waitUntilFull(page, area);
    await waitUntilFull(page, panel('Latency').locator('.line.p99'));
    await waitUntilFull(page, row(page, 'login').locator('.area.denied'));
    assert.ok((await panel('All requests').locator('.tick').count()) >= 3, range);
  }
  await panel('All requests').getByText('60 min ago').waitFor();
  await panel('Latency').getByText('50 ms').first().waitFor();
  assert.deepEqual(await accessibilityViolations(page), []);
});

test('rule view shows settings and denial reasons', async () => {
  const page = await browser.open(gateway);
  await page.getByRole('link', { name: 'login', exact: true }).click();
  await page.getByRole('heading', { name: 'login', level: 1 }).waitFor();
  assert.equal(await page.title(), 'login · Tidegate');
  await page.getByText('2/h').first().waitFor();
  await page.locator('.facts', { hasText: 'quota exceeded' }).waitFor();
  await page.getByRole('row', { name: /alice/ }).waitFor();
  await page.goto(`${gateway.admin}/#/rules/missing`);
  await page.getByText('has no such rule').waitFor();
});

test('rule view shows settled costs', async () => {
  const settling = await Gateway.start({ rules: '[{ name: tokens, quota: 1000/h, cost: 10, settle: body /cost }]' });
  try {
    await settling.sendRequests(3, '/');
    const page = await browser.open(settling, 'rules/tokens');
    const fact = page.locator('.facts > div', { hasText: 'Responses without a cost' });
    await fact.getByText('3', { exact: true }).waitFor();
    await page.locator('.facts > div', { hasText: 'Tokens of debt' }).waitFor();
    assert.deepEqual(await accessibilityViolations(page), []);
  } finally {
    await settling.close();
  }
});

test('rule view of shadow rule shows keys it would deny', async () => {
  const page = await browser.open(gateway, 'rules/candidate');
  await page.getByText('It would have denied 4 requests.').waitFor();
  await page.getByRole('row', { name: /bob/ }).waitFor();
});

test('keys view lists most denied keys', async () => {
  const page = await browser.open(gateway, 'keys');
  await page.getByRole('row', { name: /alice login/ }).waitFor();
  await page.getByLabel('Rule').selectOption('reports');
  await page.getByText('No key was denied yet.').waitFor();
});

test('denial is found by its id', async () => {
  const page = await browser.open(gateway, 'denials');
  await page
    .getByRole('row', { name: /127\.0\.0\.1 alice POST \/login/ })
    .first()
    .getByRole('link', { name: 'quota exceeded' })
    .click();
  await page.getByRole('heading', { name: 'Why?' }).waitFor();
  await page.locator('.statement', { hasText: 'login' }).first().waitFor();
  await page.getByText('0 of 2', { exact: true }).waitFor();

  await page.getByRole('link', { name: 'All denials' }).click();
  await page.getByLabel('Denial id').fill(`urn:tidegate:denial:${denial}`);
  await page.getByRole('button', { name: 'Look up' }).click();
  await page.getByText(denial).waitFor();
  await page.locator('.statement').first().waitFor();
  await page.goto(`${gateway.admin}/#/why/nothing`);
  await page.getByText('Unknown denial, or its record was evicted').waitFor();
});

test('denial view explains totals, waits and lists', async () => {
  const strict = await Gateway.start({
    rules: `
  - { name: stock, match: { path: /stock }, quota: 1 total }
  - { name: slow, match: { path: /slow }, quota: 1/h, wait: 100ms }
  - { name: closed, match: { path: /closed }, deny: [127.0.0.1] }
`,
  });
  const page = await browser.open(strict);
  for (const [path, cause, retry] of [
    ['stock', 'key all exceeds 1 total: 0 of 1 left.', 'Never: a total does not refill; reset the key to start again.'],
    ['slow', 'key all would wait for 1/h longer than the 100 ms', 'If this key sends nothing else first.'],
    ['closed', 'denied by a list.', 'When a list allows the client.'],
  ]) {
    const id = (await strict.sendRequests(2, `/${path}`)).headers.get('tidegate-denial');
    await page.goto(`${strict.admin}/#/why/${id}`);
    await page.getByText(`Denied by rule ${path}: ${cause}`).waitFor();
    await page.getByText(retry).waitFor();
  }
  await strict.close();
});

test('paused denial list does not update', async () => {
  const page = await browser.open(gateway, 'denials');
  const rows = page.locator('tbody tr');
  await rows.first().waitFor();
  await page.getByRole('button', { name: 'Pause' }).click();
  const frozen = await rows.count();
  await gateway.sendRequests(1, '/login', { user: 'carol', method: 'POST' });
  await gateway.sendRequests(2, '/login', { user: 'carol', method: 'POST' });
  const denied = (await gateway.status()).requests.rejected;
  const refreshed = page.waitForResponse((response) => response.url().includes('/api/v1/denials'));
  assert.equal(await rows.count(), frozen);
  await page.getByRole('button', { name: 'Pause' }).click();
  await refreshed;
  await page.getByRole('row', { name: /carol/ }).waitFor();
  assert.ok(denied > frozen);
});

test('health view shows servers and queues', async () => {
  const page = await browser.open(gateway, 'health');
  await page.getByRole('row', { name: /app 127\.0\.0\.1:\d+ healthy/ }).waitFor();
  await page.getByRole('row', { name: /reports 0 – – – – –/ }).waitFor();
  await page.getByText('All counters are in memory.').waitFor();
});

test('shadow view shows would-be denials', async () => {
  const page = await browser.open(gateway, 'shadow');
  await page.getByText('Of 5 requests, 4 were admitted that it would have denied').waitFor();
  await page.getByRole('row', { name: /bob 4 100/ }).waitFor();
  await page.getByRole('heading', { name: 'Other rules' }).waitFor();
  await page.getByText('No changes yet.').waitFor();
  assert.equal(await page.getByRole('button', { name: 'Roll back the last change' }).isDisabled(), true);
});

test('policy view shows source and warnings', async () => {
  const page = await browser.open(gateway, 'policy');
  const source = page.getByRole('region', { name: 'The policy as text' });
  await source.getByText('name: candidate').waitFor();
  assert.ok(!(await source.textContent()).includes('a-token-of-operators'));
});

test('playground compares quotas on drawn traffic', async () => {
  const page = await browser.open(gateway, 'playground');
  const quotaResult = (place) => page.locator('.quota-results > li').nth(place);
  await quotaResult(0).getByText('token-bucket: ').waitFor();
  await quotaResult(1).getByText('fixed-window: ').waitFor();

  await page.getByRole('button', { name: 'Nothing' }).click();
  await page.getByText('0 requests in 10').waitFor();
  const field = page.getByRole('slider', { name: /Traffic, drawn/ });
  await field.focus();
  await page.keyboard.press('9');
  await page.keyboard.press('ArrowUp');
  await page.keyboard.press('ArrowRight');
  await page.keyboard.press('5');
  assert.equal(await field.getAttribute('aria-valuetext'), '5 requests at 0.166667 s');
  await page.getByText('15 requests in 10').waitFor();
  await quotaResult(0).getByText('15 admitted, 0 delayed, 0 denied').waitFor();
  await quotaResult(0).getByLabel('Quota').fill('3/h');
  await quotaResult(0).getByText('3 admitted, 0 delayed, 12 denied').waitFor();

  const box = await field.boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + 2);
  await page.mouse.down();
  await page.mouse.move(box.x + box.width - 2, box.y + 2, { steps: 3 });
  await page.mouse.up();
  await page.getByText('375 requests in 10').waitFor();

  await quotaResult(0).getByLabel('Quota').fill('5/fortnight');
  await quotaResult(0).getByText('fortnight').waitFor();
  await page.getByText('Use recorded traffic').click();
  await page.getByLabel('Times').fill('0\n1.5\nsoon');
  await page.getByRole('button', { name: 'Use these' }).click();
  await page.getByText('Line 3 is not a time').waitFor();
  await page.getByLabel('Times').fill('2026-11-16T03:20:00Z\n2026-11-16T03:20:20Z\n2026-11-16T03:20:10Z');
  await page.getByRole('button', { name: 'Use these' }).click();
  await page.getByText('3 requests in 21').waitFor();
  await page.getByRole('button', { name: 'Use the history of this gateway' }).click();
  await page.getByText(/[3-9]\d requests in .*, at the recorded times/).waitFor();
  await page.getByRole('button', { name: 'Every algorithm' }).click();
  for (const name of ['sliding-strict: ', 'sliding-log: ', 'smooth: ', 'warm-up: '])
    await page.locator('.quota-results').getByText(name).waitFor();
});

const READY = {
  '': 'In flight',
  'rules/login': 'Top keys',
  keys: 'alice',
  denials: 'quota exceeded',
  health: 'Policy loaded',
  shadow: 'Of 5 requests',
  bans: 'No bans.',
  policy: 'name: candidate',
  playground: 'fixed-window: ',
};

for (const look of [
  { phone: false, dark: false },
  { phone: true, dark: true },
]) {
  const name = `${look.phone ? 'on a phone' : 'on a desktop'}, ${look.dark ? 'dark' : 'light'}`;
  test(`every view is accessible ${name}`, async () => {
    const page = await browser.open(gateway, '', look);
    for (const [place, text] of Object.entries({ ...READY, [`why/${denial}`]: 'The state before' })) {
      await page.goto(`${gateway.admin}/#/${place}`);
      await page.getByText(text).first().waitFor();
      assert.deepEqual(await accessibilityViolations(page), [], place);
      assert.ok((await horizontalOverflow(page)) <= 0, `${place} is wider than the window`);
    }
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(ground, look.dark ? 'rgb(13, 19, 23)' : 'rgb(244, 246, 247)');
  });
}

test('views are reachable by keyboard', async () => {
  const page = await browser.open(gateway);
  // The token is stored, so the reload shows no dialog.
  await page.reload();
  await page.locator('#connection[data-state="live"]').waitFor();
  const focused = () => page.evaluate(() => document.activeElement.id || document.activeElement.textContent);
  await page.keyboard.press('Tab');
  assert.equal(await focused(), 'skip');
  await page.keyboard.press('Enter');
  assert.equal(await focused(), 'main');
  await page.keyboard.press('Shift+Tab');
  assert.equal(await focused(), 'Playground');
  await page.keyboard.press('Enter');
  await page.locator('h1:focus', { hasText: 'Playground' }).waitFor();
  assert.equal(await page.getByRole('navigation').locator('[aria-current="page"]').textContent(), 'Playground');
  await page.keyboard.press('Tab');
  assert.equal(await focused(), 'Two bursts');
});
