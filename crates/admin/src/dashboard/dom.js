// DOM elements without a framework. Text is only set as text, so input of clients never becomes markup.

import { LocalizedText } from './language.js';

const SVG = 'http://www.w3.org/2000/svg';

/** What nodes show in the current language: functions by node, then by attribute. The text of a node has the name ''. */
const localized = new WeakMap();

/** Runs `show`, and again after a change of the language if the value depends on it. */
function follow(node, name, value, show) {
  if (value instanceof LocalizedText) {
    if (!localized.has(node)) localized.set(node, new Map());
    localized.get(node).set(name, show);
  } else localized.get(node)?.delete(name);
  show();
}

/** Shows the document in the current language. Elements, focus and input stay. */
export function showLanguage() {
  const nodes = document.createTreeWalker(document, NodeFilter.SHOW_ELEMENT | NodeFilter.SHOW_TEXT);
  // An update may replace the children of its node, so the nodes are collected first.
  const found = [];
  while (nodes.nextNode()) if (localized.has(nodes.currentNode)) found.push(nodes.currentNode);
  for (const node of found) for (const show of localized.get(node).values()) show();
}

/** An element: `h('a', { href: '#/', class: 'x', on: { click } }, 'text', child)`. */
export function h(tag, attributes = {}, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

/** Like `h`, for SVG elements. */
export function svg(tag, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (name === 'on') {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else {
      set(element, name, value);
    }
  }
  const shown = children.flat().filter((child) => child !== null && child !== undefined && child !== false);
  element.append(...shown.map((child) => (child instanceof LocalizedText ? textNode(child) : child)));
  return element;
}

function textNode(text) {
  const node = document.createTextNode('');
  setText(node, text);
  return node;
}

/** Sets an attribute if it differs, or removes it if the value is `null`, `undefined` or `false`. */
export function set(element, name, value) {
  follow(element, name, value, () => {
    if (value === null || value === undefined || value === false) {
      if (element.hasAttribute(name)) element.removeAttribute(name);
      return;
    }
    const text = value === true ? '' : String(value);
    if (element.getAttribute(name) !== text) element.setAttribute(name, text);
  });
}

/** Sets the text if it differs, so that selections survive and screen readers do not repeat it. */
export function setText(element, text) {
  follow(element, '', text, () => {
    const value = String(text);
    if (element.textContent !== value) element.textContent = value;
  });
}

/**
 * Renders `items` as the children of `parent`, in order. Existing elements are reused, so that they keep the focus.
 * `create(item)` returns `{ element, update(item) }`.
 */
export function renderList(parent, items, key, create) {
  const before = (parent.rendered ??= new Map());
  const after = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    const name = key(item);
    const child = before.get(name) ?? create(item);
    child.update?.(item);
    after.set(name, child);
    if (child.element === place) place = place.nextElementSibling;
    else parent.insertBefore(child.element, place);
  }
  for (const [name, child] of before) if (!after.has(name)) child.element.remove();
  parent.rendered = after;
}

/** Text with `code` in backticks, as in messages of the gateway; or with other elements between other marks. */
export function inlineCode(text, mark = '`', tag = 'code') {
  const element = h('span');
  follow(element, '', text, () => {
    const parts = String(text).split(mark);
    element.replaceChildren(...parts.map((part, place) => (place % 2 === 1 ? h(tag, {}, part) : part)));
  });
  return element;
}

/** A label with a `tone`: `good`, `warn`, `bad`, `shadow` or none. */
export function chip(text, tone) {
  return h('span', { class: 'chip', 'data-tone': tone ?? null }, text);
}

/** A section with a heading. */
export function panel(title, ...children) {
  const heading = h('h2', {}, title);
  return h('section', { class: 'panel' }, heading, ...children);
}

/** The message of an empty list, with hints. */
export function empty(title, ...more) {
  return h(
    'div',
    { class: 'empty' },
    h('p', { class: 'empty-title' }, title),
    ...more.map((text) => h('p', {}, inlineCode(text))),
  );
}

/** Names and values; `null` values are omitted. */
export function definitionList(pairs) {
  return h(
    'dl',
    { class: 'facts' },
    pairs
      .filter(([, value]) => value !== null && value !== undefined)
      .map(([name, value]) => h('div', {}, h('dt', {}, name), h('dd', {}, value))),
  );
}

/** A table in a frame that scrolls horizontally, also by keyboard. With `cards`, a phone shows each row as a card. */
export function table(caption, columns, body, { cards = false } = {}) {
  const role = (name) => (cards ? name : null);
  const head = h(
    'thead',
    { role: role('rowgroup') },
    h(
      'tr',
      { role: role('row') },
      columns.map((column) => {
        const { name, number } = column.name ? column : { name: column };
        return h('th', { scope: 'col', role: role('columnheader'), class: number ? 'number' : null }, name);
      }),
    ),
  );
  return h(
    'div',
    { class: 'scroll', role: 'region', 'aria-label': caption, tabindex: '0' },
    h(
      'table',
      { class: cards ? 'cards' : null, role: role('table') },
      h('caption', { class: 'visually-hidden' }, caption),
      head,
      body,
    ),
  );
}

/** The body of a table with cards. */
export function cardBody() {
  return h('tbody', { role: 'rowgroup' });
}

/** A row of a table with cards; its cells are those of `cardCell`. CSS removes the roles of a table that is a list of cards. */
export function cardRow(...cells) {
  return h('tr', { role: 'row' }, cells);
}

/** A cell with the name of its column, which a card shows before the value. */
export function cardCell(name, attributes, ...children) {
  return h('td', { role: 'cell', 'data-name': name, ...attributes }, ...children);
}

/** A form field with a label and a hint. */
export function field(label, input, hint) {
  input.id ||= `field-${(field.count = (field.count ?? 0) + 1)}`;
  const hintElement = h('span', { class: 'hint', id: `${input.id}-hint` }, inlineCode(hint ?? ''));
  if (hint) input.setAttribute('aria-describedby', hintElement.id);
  return h('div', { class: 'field' }, h('label', { for: input.id }, label), input, hint ? hintElement : null);
}

/** An input for names and keys, without suggestions. */
export function nameInput(value = '') {
  return h('input', { type: 'text', required: true, autocomplete: 'off', spellcheck: 'false', class: 'mono', value });
}

/** A button with a click handler. */
export function button(text, click, attributes = {}) {
  return h('button', { type: 'button', on: { click }, ...attributes }, text);
}

/** A list of choices: `[value, text]`. */
export function select(choices, chosen, attributes = {}) {
  return h(
    'select',
    attributes,
    choices.map(([value, text]) => h('option', { value, selected: value === chosen }, text)),
  );
}
