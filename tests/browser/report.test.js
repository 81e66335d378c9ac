// The report of `tidegate replay --html`: it matches the JSON report, is accessible and self-contained.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { after, afterEach, before, test } from 'node:test';
import { promisify } from 'node:util';
import { Browser, accessibilityViolations, horizontalOverflow, program } from './harness.js';

const LOG = path.join(import.meta.dirname, '../../crates/replay/tests/data/access-apache-10k.log.gz');

// Rules that deny, delay and would deny; one name contains markup that must be escaped.
const POLICY = `rules:
  - { name: everybody, key: ip, quota: 20/min burst 10 }
  - { name: "<b>paced</b>", key: ip, match: { path: /presentations/** }, quota: 1/s, wait: 30s, queue: 100 }
  - { name: watched, key: ip, quota: 10/min, mode: shadow }
  - { name: late, match: { path: /icons/blank.gif }, quota: 1/d }
  - { name: silent, key: ip, match: { path: /never/requested }, quota: 10/min }
`;
const BEFORE = 'rules: [{ name: everybody, key: ip, quota: 30/min burst 10 }]\n';

let folder;
let file;
let report;
let browser;

before(async () => {
  folder = await mkdtemp(path.join(os.tmpdir(), 'tidegate-report-'));
  file = path.join(folder, 'report.html');
  const [policy, baseline] = [path.join(folder, 'next.yaml'), path.join(folder, 'policy.yaml')];
  await Promise.all([writeFile(policy, POLICY), writeFile(baseline, BEFORE)]);
  const args = ['replay', '--policy', policy, '--baseline', baseline, LOG, '--html', file, '--json'];
  const run = promisify(execFile)(program, args, { maxBuffer: 1 << 26 });
  [{ stdout: report }, browser] = await Promise.all([run, Browser.start()]);
  report = JSON.parse(report);
});

after(async () => {
  await browser.close();
  await rm(folder, { recursive: true });
});

afterEach(() => browser.closePages());

/** The cells of a table, without its header. */
const rows = (table) =>
  table.locator('tbody tr').evaluateAll((all) => all.map((row) => [...row.cells].map((cell) => cell.innerText)));

/** The values of a chart, measured from its bars on the time axis of `all`, in the format of the JSON report. */
async function bars(chart, { bins, columns, start, width }, all) {
  const most = Math.max(...bins.map((bin) => bin.reduce((sum, count) => sum + count)));
  const drawn = await chart.evaluate((svg) => {
    const { width, height } = svg.viewBox.baseVal;
    return [...svg.querySelectorAll('rect')].map(({ className, x, height: high }) => ({
      column: { go: 'admitted', wait: 'delayed', no: 'denied', shade: 'shadow' }[className.baseVal],
      left: x.baseVal.value / width,
      part: high.baseVal.value / height,
    }));
  });
  const found = bins.map(() => [0, 0, 0, 0]);
  for (const { column, left, part } of drawn)
    found[Math.round((all.start + left * all.bins.length * all.width - start) / width)][columns.indexOf(column)] = Math.round(part * most);
  return found;
}

test('report tables match the JSON report', async () => {
  const { page } = await browser.openFile(file);
  assert.equal(await page.locator('h1').innerText(), await page.title());
  await page.getByText(`${report.log.requests} requests in ${report.log.lines} lines`).waitFor();
  const { policy, baseline, difference } = report;
  assert.ok(policy.total.denied > 0 && policy.total.delayed > 0 && policy.rules[2].shadow > 0, 'there is nothing to see');
  const summary = ({ total, rules }) => [
    ['all', total.requests, total.admitted, total.delayed, total.denied, total.shadow],
    ...rules.map((rule) => [rule.name, rule.requests, rule.admitted, rule.delayed, rule.denied, rule.shadow]),
  ];
  const tables = page.locator('table');
  for (const [place, expected] of [
    [0, summary(policy)],
    [-2, summary(baseline)],
    [-1, difference.keys.map((key) => [key.key, key.newly_denied, key.no_longer_denied])],
  ]) {
    const found = await rows(tables.nth(place));
    const width = expected[0].length;
    assert.deepEqual(
      found.map((row) => row.slice(0, width)),
      expected.map((row) => row.map(String)),
    );
  }
  await page
    .getByText(`${difference.newly_denied} newly denied, ${difference.no_longer_denied} no longer denied, ${difference.denied_by_both} denied by both`)
    .waitFor();
});

test('report charts match the JSON report', async () => {
  const { page } = await browser.openFile(file);
  const { timeline, rules } = report.policy;
  const all = page.getByRole('img', { name: /^requests over time/ });
  assert.deepEqual(await bars(all, timeline, timeline), timeline.bins);
  // All charts have the same time axis.
  assert.equal(new Set(await page.locator('.ends').allInnerTexts()).size, 1);
  for (const rule of rules.slice(0, 4)) {
    const chart = page.getByRole('img', { name: `rule ${rule.name} over time` });
    assert.deepEqual(await bars(chart, rule.timeline, timeline), rule.timeline.bins, rule.name);
    const { height, width } = await chart.boundingBox();
    assert.ok(height > 100 && width > 600, `${width} × ${height}`);
    const part = page.getByRole('region', { name: rule.name, exact: true });
    const keys = rule.keys.slice(0, 10).map(({ key, denied }) => [key, String(denied)]);
    const found = rule.keys.length > 0 ? await rows(part.locator('table')) : [];
    assert.deepEqual(
      found.map((row) => row.slice(0, 2)),
      keys,
    );
    if (rule.denied_by_other_rules > 0)
      await part.getByText(`${rule.denied_by_other_rules} admitted by this rule were denied by other rules.`).waitFor();
  }
  await page.getByText('Rule silent matched no request.').waitFor();
  assert.equal(await page.getByRole('heading', { name: 'silent' }).count(), 0);
});

/** The WCAG contrast of bars with the page; axe-core checks texts only. */
const contrasts = (page) =>
  page.evaluate(() => {
    const light = (colour) => {
      const parts = colour.match(/[\d.]+/g).slice(0, 3).map((part) => part / 255);
      const [red, green, blue] = parts.map((it) => (it <= 0.04045 ? it / 12.92 : ((it + 0.055) / 1.055) ** 2.4));
      return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
    };
    const paper = light(getComputedStyle(document.body).backgroundColor);
    return ['go', 'wait', 'no', 'shade'].map((name) => {
      const ink = light(getComputedStyle(document.querySelector(`rect.${name}`)).fill);
      return { name, contrast: (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05) };
    });
  });

/** The smallest rendered text size. */
const smallest = (page) =>
  page.evaluate(() => {
    const texts = [...document.querySelectorAll('main *')].filter((it) => it.checkVisibility() && it.innerText?.trim());
    const drawn = [...document.querySelectorAll('svg text')].map((it) => it.getBoundingClientRect().height);
    return Math.min(...drawn, ...texts.map((it) => Number.parseFloat(getComputedStyle(it).fontSize)));
  });

for (const look of [
  { phone: false, dark: false },
  { phone: true, dark: false },
  { phone: false, dark: true },
  { phone: true, dark: true },
]) {
  const name = `${look.phone ? 'on a phone' : 'on a desktop'}, ${look.dark ? 'dark' : 'light'}`;
  test(`report is accessible and self-contained ${name}`, async () => {
    const { page, requests } = await browser.openFile(file, look);
    assert.deepEqual(await accessibilityViolations(page), []);
    assert.ok((await horizontalOverflow(page)) <= 0, 'it is wider than the window');
    const ground = await page.evaluate(() => getComputedStyle(document.body).backgroundColor);
    assert.equal(ground, look.dark ? 'rgb(20, 23, 28)' : 'rgb(253, 253, 252)');
    for (const { name, contrast } of await contrasts(page)) assert.ok(contrast >= 3, `${name}: ${contrast}`);
    assert.ok((await smallest(page)) >= 12);
    await page.evaluate(() => window.scrollTo(0, document.body.scrollHeight));
    assert.deepEqual(requests, [page.url()]);
  });
}
