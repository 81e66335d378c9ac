// The documentation site, as scripts/site builds it and a file server serves it.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdir, mkdtemp, readFile, readdir, rm, writeFile } from 'node:fs/promises';
import http from 'node:http';
import os from 'node:os';
import path from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { promisify } from 'node:util';
import { Browser, TIMEOUT, accessibilityViolations, horizontalOverflow } from './harness.js';

const run = promisify(execFile);
const ROOT = path.join(import.meta.dirname, '../..');
const TYPES = { '.css': 'text/css', '.html': 'text/html', '.js': 'text/javascript', '.png': 'image/png', '.svg': 'image/svg+xml' };

let directory;
let site;
let pages;
let server;
let url;
let browser;

before(async () => {
  directory = await mkdtemp(path.join(os.tmpdir(), 'tidegate-site-'));
  site = path.join(directory, 'site');
  await run(path.join(ROOT, 'scripts/site'), ['--output', site]);
  pages = (await readdir(site, { recursive: true })).filter((file) => file.endsWith('.html')).sort();
  server = http.createServer(serveFile).listen(0, '127.0.0.1');
  await new Promise((resolve) => server.once('listening', resolve));
  url = `http://127.0.0.1:${server.address().port}`;
  browser = await Browser.start();
});

after(async () => {
  server.close();
  server.closeAllConnections();
  await rm(directory, { recursive: true });
  await browser.close();
});

afterEach(() => browser.closePages());

async function serveFile(request, response) {
  try {
    const file = path.join(site, decodeURIComponent(new URL(request.url, url).pathname));
    const content = await readFile(file.endsWith('/') ? `${file}index.html` : file);
    response.setHeader('content-type', `${TYPES[path.extname(file)] ?? 'text/plain'}; charset=utf-8`);
    response.end(content);
  } catch {
    response.writeHead(404).end();
  }
}

const open = (place, look) => browser.openUrl(`${url}/${place}`, look);

for (const [start, query, name, target] of [
  ['index.html', 'token buckets', 'Which algorithm? › Token bucket', '/algorithms.html#token-bucket'],
  ['decisions/index.html', 'auth_request', 'Tidegate › Use with nginx', '/index.html#use-with-nginx'],
  ['zh/index.html', '令牌桶', '选哪种算法 › 令牌桶', '/zh/algorithms.html#令牌桶'],
  ['zh/index.html', '令牌桶算法', '选哪种算法 › 令牌桶', '/zh/algorithms.html#令牌桶'],
]) {
  test(`search for ${query} finds ${name}`, async () => {
    const { page } = await open(start);
    await page.keyboard.press('/');
    await page.keyboard.insertText(query);
    const results = page.locator('#results a');
    await results.first().waitFor();
    assert.equal(await results.first().locator('strong').textContent(), name);
    await page.keyboard.press('Enter');
    await page.waitForURL((address) => decodeURIComponent(address.href).startsWith(url + target));
    await page.close();
  });
}

test('search without a match reports no results', async () => {
  for (const [start, text] of [
    ['index.html', 'No results'],
    ['zh/index.html', '没有结果'],
  ]) {
    const { page } = await open(start);
    await page.getByRole('searchbox').fill('qqqqqq');
    await page.getByText(text).waitFor();
    await page.close();
  }
});

test('language link leads to the same page in the other language', async () => {
  const { page } = await open('algorithms.html');
  await page.getByRole('banner').getByRole('link', { name: '中文' }).click();
  await page.waitForURL(`${url}/zh/algorithms.html`);
  await page.getByRole('navigation', { name: '导航' }).getByRole('link', { name: '教程' }).click();
  await page.waitForURL(`${url}/zh/tutorial.html`);
  await page.getByRole('banner').getByRole('link', { name: 'English' }).click();
  await page.waitForURL(`${url}/tutorial.html`);
  await page.close();
});

test('theme button switches the theme of all pages', async () => {
  const { page } = await open('algorithms.html', { dark: true });
  const background = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const dark = await background();
  await page.getByRole('button', { name: 'Light or dark' }).click();
  const light = await background();
  assert.notEqual(light, dark);
  await page.goto(`${url}/zh/index.html`);
  assert.equal(await background(), light);
  await page.close();
});

test('navigation opens on phones', async () => {
  const { page } = await open('index.html', { phone: true });
  const tutorial = page.getByRole('navigation', { name: 'Navigation' }).getByRole('link', { name: 'Tutorial' });
  assert.equal(await tutorial.isVisible(), false);
  await page.getByRole('button', { name: 'Navigation' }).click();
  await tutorial.click();
  await page.waitForURL(`${url}/tutorial.html`);
  await page.close();
});

test('diagrams are drawn in both themes', async () => {
  for (const dark of [false, true]) {
    const { page } = await open('architecture.html', { dark });
    await page.locator('.mermaid svg').getByText('policy file').waitFor();
    await page.close();
  }
});

test('no page is wider than a phone or requests other hosts', { timeout: 4 * TIMEOUT }, async () => {
  const { page, requests } = await open('index.html', { phone: true });
  for (const place of pages.filter((name) => !/^(source|decisions)\/.*\d/.test(name))) {
    await page.goto(`${url}/${place}`, { waitUntil: 'load' });
    assert.ok((await horizontalOverflow(page)) <= 0, `${place} is wider than the window`);
  }
  assert.deepEqual(requests.filter((address) => !address.startsWith(`${url}/`) && !address.startsWith('data:')), []);
  await page.close();
});

for (const place of ['index.html', 'architecture.html', 'zh/algorithms.html']) {
  for (const look of [{}, { dark: true }, { phone: true }]) {
    test(`${place} is accessible: ${JSON.stringify(look)}`, async () => {
      const { page } = await open(place, look);
      assert.deepEqual(await accessibilityViolations(page), []);
      await page.close();
    });
  }
}

test('every link leads to a file and an anchor of the site', async () => {
  const texts = new Map(await Promise.all(pages.map(async (page) => [page, await readFile(path.join(site, page), 'utf8')])));
  const files = new Set(await readdir(site, { recursive: true }));
  const anchors = (file) => new Set([...texts.get(file).matchAll(/ id="([^"]+)"/g)].map(([, id]) => id));
  const broken = [];
  for (const [page, text] of texts) {
    for (const [, link] of text.matchAll(/ (?:href|src)="([^"]*)"/g)) {
      if (/^(https?:|mailto:|data:)/.test(link)) continue;
      const [file, anchor] = decodeURIComponent(link).split('#');
      const target = file ? path.join(path.dirname(page), file) : page;
      if (!files.has(target) || (anchor && !anchors(target).has(anchor))) broken.push(`${page}: ${link}`);
    }
  }
  assert.deepEqual(broken, []);
});

const NAVIGATION = `
[[groups]]
titles = ["Start", "开始"]
pages = [["README.md", "Overview", "概览"], ["docs/a.md", "A", "甲"]]
`;

/** Builds a site of a few files; returns the problems. */
async function problems(changes) {
  const source = await mkdtemp(path.join(directory, 'source-'));
  const files = { 'docs/site/navigation.toml': NAVIGATION, 'README.md': '# Start\n', 'docs/a.md': '# A\n\n## Part\n', ...changes };
  for (const [file, text] of Object.entries(files)) {
    await mkdir(path.dirname(path.join(source, file)), { recursive: true });
    await writeFile(path.join(source, file), text);
  }
  await run('git', ['init', '--quiet', source]);
  const options = ['--source', source, '--output', path.join(source, 'target/site')];
  const { stdout } = await run(path.join(ROOT, 'scripts/site'), options).catch((error) => error);
  return stdout.trim().split('\n');
}

for (const [name, files, expected] of [
  ['correct links', { 'README.md': '[a](docs/a.md#part) [file](b.txt) [directory](docs/site)\n', 'b.txt': 'text\n' }, /^scripts\/site: 2 pages/],
  ['link without a target', { 'README.md': '# Start\n\n[b](docs/b.md)\n' }, /^README.md:3: link to docs\/b.md, which does not exist$/],
  ['link to a missing heading', { 'README.md': '[a](docs/a.md#other)\n' }, /^README.md:1: link to docs\/a.md#other, but there is no such heading$/],
  ['missing picture', { 'docs/a.md': '![b](b.png)\n' }, /^docs\/a.md:1: picture b.png, which is no file of the project$/],
  ['picture of another host', { 'docs/a.md': '![b](https://example.com/b.png)\n' }, /^docs\/a.md:1: picture https:/],
  ['page that is not listed', { 'docs/b.md': '# B\n' }, /^docs\/b.md: not in the navigation: add \["docs\/b.md", "TITLE", "中文标题"\]/],
  ['Chinese page alone', { 'docs/zh/b.md': '# 乙\n' }, /^docs\/zh\/b.md: no English page: write docs\/b.md/],
  ['listed page that is missing', { 'docs/site/navigation.toml': NAVIGATION.replace('a.md', 'c.md') }, /c.md does not exist$/],
]) {
  test(`build reports: ${name}`, async () => {
    assert.match((await problems(files))[0], expected);
  });
}
