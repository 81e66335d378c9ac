// Routes to the current view, and updates the parts that all views share.

import { badge, findAlerts, findBadges, showAlerts } from './alerts.js';
import { h, setText, set, showLanguage } from './dom.js';
import { LANGUAGES, chooseLanguage, join, language, t } from './language.js';
import { LiveFeed } from './live.js';
import * as operator from './operator.js';
import { bans } from './views/bans.js';
import { denials } from './views/denials.js';
import { health } from './views/health.js';
import { keys } from './views/keys.js';
import { playground } from './views/playground.js';
import { policy } from './views/policy.js';
import { rule } from './views/rule.js';
import { shadow } from './views/shadow.js';
import { traffic } from './views/traffic.js';
import { denial } from './views/denial.js';

/** Paths, views and their names in the navigation. A view is `show(page)`, which returns `{ snapshot, close }`. */
const VIEWS = [
  { path: '', name: t('Traffic'), show: traffic },
  { path: 'keys', name: t('Keys'), show: keys },
  { path: 'denials', name: t('Denials'), show: denials },
  { path: 'health', name: t('Health'), show: health },
  { path: 'shadow', name: t('Shadow'), show: shadow },
  { path: 'bans', name: t('Bans'), show: bans },
  { path: 'policy', name: t('Policy'), show: policy },
  { path: 'playground', name: t('Playground'), show: playground },
  { path: 'rules', under: '', show: rule },
  { path: 'why', under: 'denials', show: denial },
];

const live = new LiveFeed();
const main = document.getElementById('main');
const connection = document.getElementById('connection');
const notice = document.getElementById('notice');
let current = null;

/** Shows a message, and announces it to screen readers. */
function notify(text, tone = 'good') {
  notice.dataset.tone = tone;
  notice.replaceChildren();
  // Screen readers announce an identical text only if it is inserted again.
  requestAnimationFrame(() =>
    notice.replaceChildren(
      h('span', {}, text),
      h(
        'button',
        {
          type: 'button',
          class: 'quiet',
          'aria-label': t('Close this message'),
          on: { click: () => notice.replaceChildren() },
        },
        '×',
      ),
    ),
  );
}

function route() {
  if (location.hash && !location.hash.startsWith('#/')) return null;
  const [path, query] = location.hash.slice(2).split('?');
  const [name, ...rest] = path.split('/');
  const view = VIEWS.find((view) => view.path === name) ?? VIEWS[0];
  return { view, argument: decode(rest.join('/')), query: new URLSearchParams(query) };
}

/** A typed URL may not be decodable. */
function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

function navigate({ focus }) {
  const to = route();
  if (!to) return;
  current?.close?.();
  const page = { live, notify, argument: to.argument, query: to.query, root: h('div', { class: 'view' }) };
  main.replaceChildren(page.root);
  current = to.view.show(page) ?? {};
  showTitle();
  for (const link of document.querySelectorAll('#navigation a')) {
    const isCurrent = link.dataset.path === (to.view.under ?? to.view.path);
    set(link, 'aria-current', isCurrent ? 'page' : null);
    if (isCurrent) link.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
  if (live.latest) current.snapshot?.(live.latest);
  if (focus) {
    const heading = page.root.querySelector('h1');
    window.scrollTo(0, 0);
    heading?.setAttribute('tabindex', '-1');
    heading?.focus({ preventScroll: true });
  }
}

function showTitle() {
  document.title = `${main.querySelector('h1').textContent} · Tidegate`;
}

/** The switch of the language. */
function languageSelect(element) {
  set(element, 'aria-label', t('Language'));
  element.append(...LANGUAGES.map(([tag, name]) => h('option', { value: tag, lang: tag }, name)));
  element.value = language();
  document.documentElement.lang = language();
  element.addEventListener('change', () => {
    chooseLanguage(element.value);
    document.documentElement.lang = language();
    showLanguage();
    showTitle();
  });
}

const badges = new Map(VIEWS.filter(({ name }) => name).map(({ path }) => [path, badge()]));
document
  .getElementById('navigation')
  .append(
    ...VIEWS.filter(({ name }) => name).map(({ path, name }) =>
      h('li', {}, h('a', { href: `#/${path}`, 'data-path': path }, name, badges.get(path).elements)),
    ),
  );
const skip = document.getElementById('skip');
setText(skip, t('Skip to content'));
skip.addEventListener('click', () => main.focus());
set(document.getElementById('views'), 'aria-label', t('Views'));
set(document.getElementById('alerts'), 'aria-label', t('Alerts'));
languageSelect(document.getElementById('language'));

const showOperator = operator.tokenButton(document.getElementById('operator'));
const CONNECTION_STATES = {
  connecting: t('Connecting …'),
  live: t('Live'),
  lost: t('Connection lost. Reconnecting …'),
};
setText(connection, CONNECTION_STATES.connecting);
live.addEventListener('state', () => {
  set(connection, 'data-state', live.state);
  setText(connection, CONNECTION_STATES[live.state]);
  document.body.classList.toggle('stale', live.state === 'lost');
});
live.addEventListener('locked', async () => {
  setText(connection, t('Locked'));
  if (await operator.requestToken()) {
    live.resume();
    navigate({ focus: false });
  } else showOperator();
});
live.addEventListener('snapshot', () => {
  const { policy, version, changes } = live.latest;
  const numbers = findBadges(live.latest, live.rejectedLastMinute());
  operator.setChangeAccess(changes);
  showOperator();
  const about = [policy.file ?? t('policy'), policy.version.slice(0, 8), `v${version}`];
  setText(document.getElementById('about'), join(about, ' · '));
  showAlerts(document.getElementById('alerts'), findAlerts(live.latest));
  for (const [path, badge] of badges) badge.show(numbers[path]);
  current?.snapshot?.(live.latest);
});

window.addEventListener('hashchange', () => navigate({ focus: true }));
navigate({ focus: false });
live.start();
