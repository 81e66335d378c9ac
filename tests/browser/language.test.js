// The languages of the dashboard: the catalog, the switch, and every view in Chinese.

import assert from 'node:assert/strict';
import { readFile, readdir } from 'node:fs/promises';
import path from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { Browser, Gateway, OBSERVE, RULES, TOKEN, accessibilityViolations, horizontalOverflow } from './harness.js';

const DASHBOARD = path.join(import.meta.dirname, '../../crates/admin/src/dashboard');

/** The modules of the dashboard without comments, except those of the language itself. */
async function modules() {
  const names = (await readdir(DASHBOARD, { recursive: true })).filter(
    (name) => name.endsWith('.js') && !['language.js', 'chinese.js'].includes(name),
  );
  return Promise.all(
    names.map(async (name) => {
      const text = await readFile(path.join(DASHBOARD, name), 'utf8');
      return { name, text: text.replace(/^\s*(\/\/|\/?\*).*$/gm, '') };
    }),
  );
}

async function catalog() {
  const source = await readFile(path.join(DASHBOARD, 'chinese.js'), 'utf8');
  return (await import(`data:text/javascript,${encodeURIComponent(source)}`)).CHINESE;
}

const LITERAL = String.raw`'(?:[^'\\\n]|\\.)*'`;
/** A call of `t` or `plural` with its texts, of which the last one is in the catalog. */
const CALL = new RegExp(String.raw`(?<![\w.])(?:t\(\s*(${LITERAL})|plural\(\s*${LITERAL},\s*(${LITERAL}))`, 'g');
const value = (literal) => Function(`return ${literal}`)();
const placeholders = (text) => [...new Set(text.match(/\{\w+\}/g))].sort();

test('every text has a translation, and every translation is used', async () => {
  const used = new Set();
  for (const { name, text } of await modules()) {
    const calls = [...text.matchAll(CALL)];
    assert.equal(calls.length, text.match(/(?<![\w.])(?:t|plural)\(/g)?.length ?? 0, `${name}: a text is not a literal`);
    for (const [, single, other] of calls) used.add(value(single ?? other));
  }
  const chinese = await catalog();
  assert.deepEqual(Object.keys(chinese).sort(), [...used].sort());
  for (const [english, translation] of Object.entries(chinese))
    assert.deepEqual(placeholders(translation), placeholders(english), english);
});

/** Strings that look like texts: names of HTTP, of the DOM, of series and of quotas. */
const NAMES = /^.(Content-Type|Bearer |AbortError|Envoy|#navigation a|latency of |\d+(\/s| per 5s) )/;

test('no text bypasses the catalog', async () => {
  /** A capitalized word, or several words. */
  const text = /^.\s*[A-Z][a-z]|[a-z,.:] [a-z]/;
  const found = [];
  for (const { name, text: source } of await modules()) {
    const rest = source
      .replace(CALL, '')
      .replace(/^import .*$/gm, '')
      .replace(new RegExp(`class: ${LITERAL}|${LITERAL}:`, 'g'), '');
    for (const [string] of rest.matchAll(new RegExp(`${LITERAL}|\`[^\`]*\``, 'g')))
      if (text.test(string.replace(/\$\{.*?\}/g, '')) && !NAMES.test(string)) found.push(`${name}: ${string}`);
  }
  assert.deepEqual(found, []);
});

let browser;
let gateway;
let denial;

before(async () => {
  [gateway, browser] = await Promise.all([Gateway.start({ admin: 'admin: 127.0.0.1:0' }), Browser.start()]);
  await gateway.sendRequests(20, '/');
  await gateway.sendRequests(5, '/search', { user: 'bob' });
  await gateway.sendRequests(2, '/reports');
  denial = (await gateway.sendRequests(5, '/login', { user: 'alice', method: 'POST' })).headers.get('tidegate-denial');
  const ban = { rule: 'login', key: 'mallory', seconds: 600, reason: 'curl' };
  const headers = { 'content-type': 'application/json' };
  await fetch(`${gateway.admin}/api/v1/bans`, { method: 'POST', headers, body: JSON.stringify(ban) });
});

after(async () => {
  await gateway.close();
  await browser.close();
});

afterEach(() => browser.closePages());

/** Each view, with an element that it shows after it has its data. */
const views = () => ({
  '': '.rules > li',
  'rules/login': '.facts dd',
  'rules/candidate': '.facts dd',
  'rules/missing': '.empty',
  keys: 'tbody tr',
  denials: 'tbody tr',
  [`why/${denial}`]: '.statement',
  'why/unknown': '.empty',
  health: '.facts dd',
  shadow: 'tbody tr',
  bans: 'tbody tr',
  policy: '.source',
  playground: '.quota-summary b',
});

/**
 * Names of the policy and of the API, addresses and units: everything else is translated. Elements with code, and with
 * messages of the gateway, are not read.
 */
const UNTRANSLATED = [
  /\b(Tidegate(-Denial)?|Envoy|API|JSON|ID|TLS|policy\.yaml|v\d[\d.]+)\b/g,
  /\b(everybody|login|reports|candidate|missing|pages|search|similar|app|alice|bob|mallory|curl|api|default|quota)\b/g,
  /\b(GET|POST) \/\w*|\b(ip|header x-user)\b|\b[\da-f]{8,16}\b|\b[\da-hjkmnp-tv-z]{16}\b|\d+T[\d:]+Z/g,
  /\b(token-bucket|leaky-bucket queue|(leaky|fixed|sliding)-\w+|without-effect|unreachable|memory|normal|low)\b|\d( per [\d.]+(ms|s)|\/(s|min|h))/g,
  /\d\u00a0(ns|µs|ms|kB|MB|GB)\b|\bp(50|95|99)\b|\b[2345]xx\b|\bx0\.\d+/g,
];

/** The texts of the page, also those for screen readers, and in tooltips. */
function readTexts() {
  const texts = [document.title];
  const nodes = document.createTreeWalker(document.body, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT, (node) =>
    node.matches?.('code, pre, noscript, [lang="en"]') ? NodeFilter.FILTER_REJECT : NodeFilter.FILTER_ACCEPT,
  );
  for (let node = nodes.nextNode(); node; node = nodes.nextNode())
    if (node.data !== undefined) texts.push(node.data);
    else for (const name of ['aria-label', 'aria-valuetext', 'title', 'data-name']) texts.push(node.getAttribute(name) ?? '');
  return texts.map((text) => text.trim()).filter(Boolean);
}

/** The texts that contain words in Latin letters. */
const untranslated = (texts) =>
  texts.filter((text) => /[a-z]{2}/i.test(UNTRANSLATED.reduce((rest, names) => rest.replace(names, ''), text)));

/** The texts in English, in Chinese and again in English. The page receives no data in the meantime. */
function switchTwice(page) {
  return page.evaluate((read) => {
    const select = document.getElementById('language');
    const texts = (language) => {
      select.value = language;
      select.dispatchEvent(new Event('change'));
      return Function(`return (${read})()`)();
    };
    return [texts('en'), texts('zh-CN'), texts('en')];
  }, readTexts.toString());
}

/** Loads a view. A changed query prevents that the page shows the previous view for a moment. */
async function show(page, { admin }, place, ready) {
  await page.goto(`${admin}/?${encodeURIComponent(place)}#/${place}`);
  await page.locator(ready).first().waitFor();
}

const CHINESE_LOOKS = [
  { phone: false, dark: false, locale: 'zh-CN' },
  { phone: true, dark: true, locale: 'zh-CN' },
];

for (const look of CHINESE_LOOKS) {
  test(`every view is in Chinese ${look.phone ? 'on a phone' : 'on a desktop'}`, async () => {
    const page = await browser.open(gateway, '', look);
    assert.equal(await page.locator('html').getAttribute('lang'), 'zh-CN');
    for (const [place, ready] of Object.entries(views())) {
      await show(page, gateway, place, ready);
      assert.deepEqual(untranslated(await page.evaluate(readTexts)), [], place);
      assert.deepEqual(await accessibilityViolations(page), [], place);
      assert.ok((await horizontalOverflow(page)) <= 0, `${place} is wider than the window`);
    }
  });
}

test('switch translates every view without new data, and back', async () => {
  const page = await browser.open(gateway);
  for (const [place, ready] of Object.entries(views())) {
    await show(page, gateway, place, ready);
    const [before, chinese, after] = await switchTwice(page);
    assert.deepEqual(untranslated(chinese), [], place);
    assert.deepEqual(after, before, place);
  }
});

test('reload retains the chosen language, and the switch retains focus and input', async () => {
  const page = await browser.open(gateway, 'bans');
  const select = page.getByLabel('Language');
  assert.equal(await select.inputValue(), 'en');
  await page.getByLabel('Target', { exact: true }).fill('192.0.2.7');
  await select.focus();
  await page.keyboard.press('ArrowDown');
  await page.getByRole('heading', { name: '封禁与重置' }).waitFor();
  assert.equal(await page.title(), '封禁与重置 · Tidegate');
  assert.equal(await page.locator('html').getAttribute('lang'), 'zh-CN');
  assert.equal(await page.evaluate(() => document.activeElement.id), 'language');
  assert.equal(await page.getByLabel('对象', { exact: true }).inputValue(), '192.0.2.7');

  await page.reload();
  await page.getByRole('heading', { name: '封禁与重置' }).waitFor();
  assert.equal(await page.getByLabel('语言').inputValue(), 'zh-CN');
  await page.getByLabel('语言').selectOption('English');
  await page.reload();
  await page.getByRole('heading', { name: 'Bans and resets' }).waitFor();
});

test('page follows the languages of the browser', async () => {
  for (const [locale, language] of [
    ['zh-TW', 'zh-CN'],
    ['en-GB', 'en'],
    ['fr-FR', 'en'],
  ]) {
    const page = await browser.open(gateway, '', { locale });
    assert.equal(await page.locator('html').getAttribute('lang'), language, locale);
  }
});

test('prompts, confirmations and messages are in Chinese', async () => {
  const locked = await Gateway.start();
  const page = await browser.openWithoutToken(locked, 'shadow', { locale: 'zh-CN' });
  const dialog = (name) => page.getByRole('dialog', { name });
  const check = async () => assert.deepEqual(untranslated(await page.evaluate(readTexts)), []);
  await dialog('操作员令牌').waitFor();
  await check();
  await page.getByLabel('令牌', { exact: true }).fill('a guess');
  await page.getByRole('button', { name: '继续' }).click();
  await page.getByText('操作员令牌无效。').waitFor();
  await page.getByLabel('令牌', { exact: true }).fill(TOKEN);
  await page.getByRole('button', { name: '继续' }).click();

  for (const [mode, question] of [
    ['enforce', 'candidate：全部生效？'],
    ['enforce 10', 'candidate：对 10% 的限流键生效？'],
    ['off', 'candidate：关闭？'],
  ]) {
    await page.getByLabel('candidate 的模式').selectOption(mode);
    await page.getByRole('button', { name: '应用 到 candidate' }).click();
    await dialog(question).waitFor();
    await check();
    await dialog(question).getByRole('button', { name: '取消' }).click();
  }
  await page.getByLabel('candidate 的模式').selectOption('enforce 10');
  await page.getByRole('button', { name: '应用 到 candidate' }).click();
  await dialog('生效').getByRole('button', { name: '生效' }).click();
  await page.getByText('规则 candidate：对 10% 的限流键生效。').waitFor();
  await page.getByText('candidate：影子模式 → 生效 10%（api）').waitFor();
  await check();
  await page.getByRole('button', { name: '回滚最近一次修改' }).click();
  await dialog('确认回滚？').getByRole('button', { name: '回滚' }).click();
  await page.getByText('修改 1 已撤销。').waitFor();
  await page.getByText('candidate：生效 10% → 影子模式，撤销修改 1（api）').waitFor();
  await check();

  await page.getByRole('link', { name: '策略' }).click();
  await page.getByRole('button', { name: '重新加载' }).click();
  await page.getByText('已重新加载').waitFor();
  await check();
  await locked.stop();
  await page.getByText('连接已断开，正在重连…').waitFor();
  await check();
  await locked.restart();
  await locked.close();
});

/** Few settings: the views explain what is missing. */
const BARE = { admin: 'admin: 127.0.0.1:0', observe: '', rules: '[]' };
/** Features, load and breakers, with a server that is down and a policy that was rejected. */
const FAILING = {
  admin: 'admin: 127.0.0.1:0',
  observe: `${OBSERVE}\nload: { signals: [memory] }\nfeatures: { search: critical, similar: manual }`,
  rules: `${RULES}  - { name: search, match: { path: /search }, feature: search }
  - { name: similar, match: { path: /similar }, feature: similar }
  - { name: pages, shed: { low: 60%, normal: 80% }, quota: 1000/s, adaptive: { target: 250ms, min: 1, max: 10 }, breaker: { window-size: 10s, min-calls: 1, failure-rate: 10% } }
`,
  healthCheck: true,
};
const PLACES = ['', 'rules/pages', 'rules/similar', 'keys', 'denials', 'health', 'shadow', 'bans', 'policy'];

test('views without data are in Chinese', async () => {
  const bare = await Gateway.start(BARE);
  const page = await browser.open(bare, '', { locale: 'zh-CN' });
  for (const place of PLACES) {
    await show(page, bare, place, '.empty');
    await page.locator('#connection[data-state="live"]').waitFor();
    assert.deepEqual(untranslated(await page.evaluate(readTexts)), [], place);
  }
  await bare.close();
});

test('alerts and failures are in Chinese', async () => {
  const failing = await Gateway.start(FAILING);
  const page = await browser.open(failing, 'health', { locale: 'zh-CN' });
  await page.getByRole('group', { name: '功能 similar' }).getByRole('button', { name: '关闭' }).click();
  await page.getByRole('dialog', { name: '关闭 similar？' }).getByRole('button', { name: '关闭' }).click();
  await page.getByText('功能 similar：由操作员关闭。').waitFor();
  await failing.sendRequests(1, '/similar');
  await failing.stopServer();
  await failing.sendRequests(2, '/');
  await failing.rewrite((policy) => policy.replace('quota: 1/h', 'quota: 1/hh'));
  const alerts = page.getByRole('list', { name: '告警' });
  for (const text of ['上游 app：没有可用的服务器。', '策略文件已修改，但内容无效', '已关闭的功能：similar。', '规则 pages 的熔断器：打开。'])
    await alerts.getByText(text).waitFor();
  for (const place of PLACES) {
    await show(page, failing, place, '.alerts li');
    assert.deepEqual(untranslated(await page.evaluate(readTexts)), [], place);
  }
  await failing.startServer();
  await failing.close();
});
