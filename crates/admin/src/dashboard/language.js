// The language of the page. The code contains the English texts, and `chinese.js` their translations.

import { CHINESE } from './chinese.js';

/** The languages of the page, each with its own name. */
export const LANGUAGES = [
  ['en', 'English'],
  ['zh-CN', '中文'],
];
const CATALOGS = { en: {}, 'zh-CN': CHINESE };
const CHOICE_KEY = 'tidegate-language';

let current = preferred();

/** The stored choice, or the first language of the browser that the page has. */
function preferred() {
  const primary = (tag) => tag.split('-')[0].toLowerCase();
  const known = [localStorage.getItem(CHOICE_KEY) ?? [], navigator.languages]
    .flat()
    .map((tag) => LANGUAGES.find(([language]) => primary(language) === primary(tag)))
    .find(Boolean);
  return (known ?? LANGUAGES[0])[0];
}

/** The current language, as in the attribute `lang`. */
export function language() {
  return current;
}

/** Sets the language, and stores it in the browser. */
export function chooseLanguage(chosen) {
  current = chosen;
  localStorage.setItem(CHOICE_KEY, chosen);
}

/** A text that depends on the language. Elements of `dom.js` that show it follow the language. */
export class LocalizedText {
  #write;

  /** `write(language)` returns the text. */
  constructor(write) {
    this.#write = write;
  }

  in(language) {
    return this.#write(language);
  }

  toString() {
    return this.in(current);
  }

  /** The English text, so that comparisons as JSON do not depend on the language. */
  toJSON() {
    return this.in('en');
  }
}

/** A text of the catalog. Its parts in braces are values: `t('Rule {name}', { name })`. */
export function t(text, values = {}) {
  return new LocalizedText((language) => insert(CATALOGS[language][text] ?? text, values, language));
}

/** A text with `{count}`: the first one for a single item, if the language has a singular. The catalog has the second one. */
export function plural(one, other, count, values = {}) {
  return new LocalizedText((language) => {
    const isOne = new Intl.PluralRules(language).select(count) === 'one';
    const text = CATALOGS[language][other] ?? (isOne ? one : other);
    return insert(text, { ...values, count: new Intl.NumberFormat(language).format(count) }, language);
  });
}

/** Texts in a row. */
export function join(texts, separator) {
  return new LocalizedText((language) => texts.map((text) => textIn(text, language)).join(textIn(separator, language)));
}

function insert(text, values, language) {
  return text.replace(/\{(\w+)\}/g, (part, name) => (name in values ? textIn(values[name], language) : part));
}

function textIn(value, language) {
  return value instanceof LocalizedText ? value.in(language) : String(value);
}

/** An error with a message for the user. */
export class UserError extends Error {
  constructor(message) {
    super();
    // A text that follows the language stays one.
    this.message = message;
  }
}
