// The policy in force, and its warnings.

import { get } from '../api.js';
import { empty, h, panel, setText, inlineCode } from '../dom.js';
import { dateTime, word } from '../format.js';
import { t } from '../language.js';
import { change, canChange } from '../operator.js';

export function policy({ root, notify }) {
  const about = h('p', { class: 'lead' });
  const wrong = h('pre', { class: 'mono', lang: 'en' });
  const rejected = h(
    'div',
    { class: 'banner', role: 'alert', hidden: true },
    t('The policy file changed but is invalid; the previous policy stays in force:'),
    wrong,
  );
  const reload = h('button', { type: 'button' }, t('Reload'));
  const lint = h('div');
  const source = h('div');
  root.append(
    h('div', { class: 'title' }, h('h1', {}, t('Policy')), reload),
    about,
    rejected,
    panel(t('Warnings'), lint),
    panel(t('In force'), source),
  );

  reload.addEventListener('click', async () => {
    try {
      const response = await change('POST', 'reload');
      if (response) notify(word((await response.text()).trim()));
    } catch (error) {
      notify(error.message, 'bad');
    }
  });

  let known = null;
  let closed = false;
  const load = async () => {
    try {
      const it = await get('api/v1/policy');
      if (closed) return;
      source.replaceChildren(listing(it.text));
      lint.replaceChildren(it.lint.length === 0 ? empty(t('No warnings.')) : lints(it.lint));
    } catch (error) {
      if (!closed) source.replaceChildren(empty(t('Cannot load the policy.'), error.message));
      known = null;
    }
  };
  return {
    snapshot({ policy }) {
      reload.hidden = !canChange();
      setText(
        about,
        t('{file}, version {version}, in force since {time}.', {
          file: policy.file ?? t('A policy without a file'),
          version: policy.version,
          time: dateTime(policy.loaded),
        }),
      );
      rejected.hidden = !policy.error;
      if (policy.error) {
        setText(wrong, policy.error);
      }
      if (policy.version !== known) {
        known = policy.version;
        load();
      }
    },
    close: () => {
      closed = true;
    },
  };
}

function lints(all) {
  return h(
    'ul',
    { class: 'lints' },
    all.map(({ lint, rule, reason, fix }) =>
      h(
        'li',
        {},
        h('h3', {}, rule ? h('a', { href: `#/rules/${encodeURIComponent(rule)}` }, rule) : t('The policy'), ` · ${lint}`),
        h('p', { lang: 'en' }, inlineCode(reason)),
        fix ? h('p', { class: 'note', lang: 'en' }, inlineCode(fix)) : null,
      ),
    ),
  );
}

/** YAML with line numbers, and highlighted names and comments. */
function listing(text) {
  const lines = text
    .replace(/\n$/, '')
    .split('\n')
    .map((line) => {
      const [, indent, name, rest] = /^(\s*(?:- )*)([\w"*./{}-]+:)?(.*)$/.exec(line) ?? [null, '', '', line];
      const comment = /(^|\s)#.*$/.exec(rest);
      const plain = comment ? rest.slice(0, comment.index) : rest;
      return h(
        'span',
        {},
        indent,
        name ? h('span', { class: 'name' }, name) : '',
        plain,
        comment ? h('span', { class: 'comment' }, comment[0]) : '',
      );
    });
  return h('pre', { class: 'source', tabindex: '0', role: 'region', 'aria-label': t('The policy as text') }, lines);
}
