// The documentation site: theme, navigation on phones, search, copy buttons and diagrams. Pages work without it, except for the search.

const html = document.documentElement;
const { root } = html.dataset;
const texts = JSON.parse(html.dataset.texts);

// Theme: before the page is drawn.

const systemIsDark = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (html.dataset.theme ? html.dataset.theme === 'dark' : systemIsDark.matches);

/** Local storage is not available in every browser for files. */
function stored(change) {
  try {
    return change(localStorage);
  } catch {
    return null;
  }
}

const theme = stored((storage) => storage.getItem('theme'));
if (theme) html.dataset.theme = theme;

function switchTheme() {
  html.dataset.theme = isDark() ? 'light' : 'dark';
  stored((storage) => storage.setItem('theme', html.dataset.theme));
  drawDiagrams();
}

function load(file) {
  return new Promise((resolve, reject) => {
    const script = document.createElement('script');
    script.src = root + file;
    script.onload = resolve;
    script.onerror = () => reject(new Error(`cannot load ${file}`));
    document.head.append(script);
  });
}

// Search. Sections that contain every term are found, or else those that contain any. A term is compared without its English ending.
// Chinese needs no index of words: a term is any run of characters, and the browser splits a query without spaces.

const CHINESE = /[\u3400-\u9fff]/;
const MAX_RESULTS = 20;
const MAX_PER_PAGE = 3;
let sections;

async function loadSections() {
  await load('search.js');
  const { pages, sections: rows } = searchIndex;
  sections = rows.map(([page, anchor, heading, text]) => {
    const [address, title, language] = pages[page];
    const lower = { title: title.toLowerCase(), heading: heading.toLowerCase(), text: text.toLowerCase() };
    return { page, address: anchor ? `${address}#${anchor}` : address, title, heading, text, language, lower };
  });
}

function queryTerms(query) {
  const words = query.toLowerCase().split(/[\s，。、？！]+/).filter(Boolean);
  return words.flatMap((word) => {
    if (!CHINESE.test(word) || !Intl.Segmenter) return [stem(word)];
    const parts = [...new Intl.Segmenter('zh', { granularity: 'word' }).segment(word)];
    return parts.filter((part) => part.isWordLike).map((part) => stem(part.segment));
  });
}

/** An English word without the endings that rarely matter. */
const stem = (word) => (/^[a-z]{5,}$/.test(word) ? word.replace(/(?<!s)s$|ing$|ed$/, '') : word);

/** Occurrences at the start of a word count more than others; Chinese has no spaces, so all count the same. */
function termScore(term, text) {
  let score = 0;
  for (let at = text.indexOf(term); at >= 0 && score < 8; at = text.indexOf(term, at + term.length)) {
    score += CHINESE.test(term) || !/[\p{L}\p{N}]/u.test(text[at - 1] ?? ' ') ? 2 : 0.5;
  }
  return score;
}

/** The number of terms that a section contains, and how well it fits the query. */
function rate(section, terms, phrase) {
  let [matched, score] = [0, 0];
  for (const term of terms) {
    const [title, heading, text] = ['title', 'heading', 'text'].map((part) => termScore(term, section.lower[part]));
    matched += title + heading + text > 0;
    score += 5 * Math.min(title, 2) + 8 * Math.min(heading, 2) + text;
  }
  if (section.lower.heading.includes(phrase)) score += 20;
  if (section.lower.text.includes(phrase)) score += 5;
  if (section.language === html.lang) score += 15;
  // Most readers use the project, and look for its history last.
  if (/^(decisions\/|CHANGELOG)/.test(section.address)) score /= 2;
  return { section, matched, score };
}

function find(query) {
  const terms = queryTerms(query);
  if (terms.length === 0) return [];
  const phrase = query.trim().toLowerCase();
  const rated = sections.map((section) => rate(section, terms, phrase));
  const isFound = rated.some(({ matched }) => matched === terms.length);
  const perPage = new Map();
  return rated
    .filter(({ matched }) => (isFound ? matched === terms.length : matched > 0))
    .sort((left, right) => right.matched - left.matched || right.score - left.score)
    .filter(({ section: { page } }) => perPage.set(page, (perPage.get(page) ?? 0) + 1).get(page) <= MAX_PER_PAGE)
    .slice(0, MAX_RESULTS)
    .map(({ section }) => ({ section, terms, phrase }));
}

function element(name, ...children) {
  const created = document.createElement(name);
  created.append(...children);
  return created;
}

/** The text around the query or its first term, with all terms marked. */
function excerpt({ text, lower }, terms, phrase) {
  const first = [phrase, ...terms].map((term) => lower.text.indexOf(term)).find((at) => at >= 0) ?? 0;
  const start = Math.max(0, first - 50);
  const part = (start ? '…' : '') + text.slice(start, start + 180);
  const pattern = new RegExp(`(${terms.map((term) => term.replace(/[.*+?^${}()|[\]\\]/g, '\\$&')).join('|')})`, 'giu');
  return element('small', ...part.split(pattern).map((piece, place) => (place % 2 ? element('mark', piece) : piece)));
}

function resultLink({ section, terms, phrase }) {
  const name = section.heading === section.title ? section.title : `${section.title} › ${section.heading}`;
  const link = element('a', element('strong', name), excerpt(section, terms, phrase));
  link.href = root + section.address;
  link.lang = section.language;
  return link;
}

async function showResults(input, panel) {
  if (!sections) await (loadSections.started ??= loadSections());
  const links = find(input.value).map(resultLink);
  panel.replaceChildren(...(links.length > 0 ? links : [element('p', texts.none)]));
  panel.hidden = input.value.trim() === '';
}

function startSearch() {
  const input = document.getElementById('search');
  const panel = document.getElementById('results');
  input.addEventListener('input', () => showResults(input, panel));
  input.addEventListener('focus', () => input.value && showResults(input, panel));
  panel.addEventListener('click', () => {
    panel.hidden = true;
  });
  document.addEventListener('click', (event) => {
    if (!event.target.closest('search')) panel.hidden = true;
  });
  document.addEventListener('keydown', (event) => {
    const links = [...panel.querySelectorAll('a')];
    const place = links.indexOf(document.activeElement);
    const isSearching = document.activeElement === input || place >= 0;
    if (event.key === '/' && !/^(input|textarea)$/i.test(document.activeElement.tagName)) {
      event.preventDefault();
      input.focus();
    } else if (event.key === 'Escape' && isSearching) {
      panel.hidden = true;
      input.focus();
    } else if (isSearching && !panel.hidden && (event.key === 'ArrowDown' || event.key === 'ArrowUp')) {
      event.preventDefault();
      (links[place + (event.key === 'ArrowDown' ? 1 : -1)] ?? input).focus();
    } else if (event.key === 'Enter' && document.activeElement === input && !event.isComposing) {
      links[0]?.click();
    }
  });
}

// Navigation, copy buttons and diagrams.

function startMenu() {
  const button = document.getElementById('menu');
  const toggle = (isOpen) => {
    html.classList.toggle('menu-open', isOpen);
    button.setAttribute('aria-expanded', isOpen);
  };
  button.addEventListener('click', () => toggle(!html.classList.contains('menu-open')));
  document.addEventListener('keydown', (event) => event.key === 'Escape' && toggle(false));
  const current = document.querySelector('#navigation [aria-current]');
  const navigation = document.getElementById('navigation');
  if (current) navigation.scrollTop = current.offsetTop - navigation.offsetTop - navigation.clientHeight / 2;
}

function addCopyButtons() {
  // The clipboard needs HTTPS or loopback.
  if (!navigator.clipboard) return;
  for (const pre of document.querySelectorAll('pre:not(.mermaid)')) {
    const button = element('button', texts.copy);
    button.type = 'button';
    button.addEventListener('click', async () => {
      await navigator.clipboard.writeText(pre.textContent);
      button.textContent = texts.copied;
      setTimeout(() => button.replaceChildren(texts.copy), 2000);
    });
    const box = element('div');
    box.className = 'code';
    pre.replaceWith(box);
    box.append(pre, button);
  }
}

async function drawDiagrams() {
  const diagrams = [...document.querySelectorAll('.mermaid')];
  if (diagrams.length === 0) return;
  if (!globalThis.mermaid) await load('mermaid.js').catch(() => {});
  if (!globalThis.mermaid) return;
  const [ink, paper, panel, line] = (
    isDark() ? '#e3e6eb #14171c #262c35 #7a8494' : '#1c2330 #ffffff #eaf1f6 #7a8494'
  ).split(' ');
  mermaid.initialize({
    startOnLoad: false,
    theme: 'base',
    themeVariables: {
      darkMode: isDark(),
      fontFamily: getComputedStyle(document.body).fontFamily,
      primaryColor: panel,
      primaryTextColor: ink,
      primaryBorderColor: line,
      lineColor: line,
      clusterBkg: paper,
      clusterBorder: line,
      titleColor: ink,
      edgeLabelBackground: paper,
    },
  });
  for (const [place, diagram] of diagrams.entries()) {
    diagram.dataset.source ??= diagram.textContent;
    diagram.innerHTML = (await mermaid.render(`diagram-${place}`, diagram.dataset.source)).svg;
  }
}

document.addEventListener('DOMContentLoaded', () => {
  document.getElementById('theme').addEventListener('click', switchTheme);
  systemIsDark.addEventListener('change', drawDiagrams);
  startSearch();
  startMenu();
  addCopyButtons();
  drawDiagrams();
});
