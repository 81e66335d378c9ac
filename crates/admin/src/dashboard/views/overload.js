// The load of the machine and the features of the policy: panels of the health view.

import { encode } from '../api.js';
import { button, chip, empty, h, panel, renderList, set, setText, table } from '../dom.js';
import { share, word } from '../format.js';
import { t } from '../language.js';
import { canChange, change, confirmAction } from '../operator.js';

const LEVEL_TONES = { relaxed: 'good', normal: 'good', busy: 'warn', critical: 'bad' };

/** The load of each signal, and its level. */
export function loadPanel() {
  const level = h('p', { class: 'chips' });
  const body = h('tbody');
  const list = table(t('Load'), [t('Signal'), t('Load')], body);
  const none = empty(
    t('The load is not measured.'),
    t('It is measured if a rule has `shed` or `scale`, or a feature has `off-at`. `load` sets its signals and levels.'),
  );
  let lastLevel = null;
  return {
    element: panel(t('Load'), level, list, none),
    update(load) {
      none.hidden = Boolean(load);
      list.hidden = !load;
      level.hidden = !load;
      if (!load) return;
      const text = JSON.stringify([load.percent, load.level]);
      if (text !== lastLevel) {
        lastLevel = text;
        level.replaceChildren(
          chip(word(load.level), LEVEL_TONES[load.level]),
          h('span', {}, t('{load} now', { load: percentText(load.percent) })),
        );
      }
      renderList(body, load.signals, ({ name }) => name, signalRow);
    },
  };
}

/** A load in percent; a signal without a reading has none. */
function percentText(percent) {
  return percent === null ? t('no reading') : share(percent / 100);
}

function signalRow({ name }) {
  const text = h('span');
  const fill = h('i');
  return {
    element: h(
      'tr',
      {},
      h('th', { scope: 'row' }, name),
      h('td', {}, text, h('span', { class: 'bar', 'data-kind': 'level' }, fill)),
    ),
    update({ percent }) {
      setText(text, percentText(percent));
      fill.style.width = `${Math.min(percent ?? 0, 100)}%`;
    },
  };
}

const STATES = [
  ['on', t('On')],
  ['off', t('Off')],
  ['automatic', t('Automatic')],
];

/** The features, with buttons that turn them on and off. */
export function featuresPanel(page) {
  const list = h('ul', { class: 'rules modes' });
  const none = empty(
    t('This policy has no features.'),
    t('`features` lists parts of the service that the load, a schedule or an operator turns off.'),
  );
  const apply = async ({ name }, state) => {
    const question = t('Its requests get the fallback of their rule, or 503, until you turn it on or set it to automatic.');
    if (state === 'off' && !(await confirmAction(t('Turn off {name}?', { name }), question, t('Turn off')))) return;
    try {
      const response = await change('POST', `api/v1/features/${encode(name)}`, { state });
      if (!response) return;
      const feature = await response.json();
      list.rendered.get(name)?.update(feature);
      page.notify(t('Feature {name}: {state}.', { name, state: stateText(feature) }));
    } catch (error) {
      page.notify(error.message, 'bad');
    }
  };
  return {
    element: panel(t('Features'), list, none),
    update(features) {
      none.hidden = features.length > 0;
      list.hidden = features.length === 0;
      renderList(
        list,
        features,
        ({ name }) => name,
        (feature) => featureRow(feature, apply),
      );
    },
  };
}

function featureRow({ name }, apply) {
  const state = h('span', { class: 'chips' });
  const cause = h('p', { class: 'rule-about' });
  let feature = null;
  let lastState = null;
  const buttons = STATES.map(([value, text]) => [value, button(text, () => apply(feature, value))]);
  return {
    element: h(
      'li',
      {},
      h('div', {}, h('span', { class: 'chips' }, h('span', { class: 'rule-name' }, name), state), cause),
      h(
        'div',
        { class: 'actions', role: 'group', 'aria-label': t('Feature {name}', { name }) },
        buttons.map(([, element]) => element),
      ),
    ),
    update(latest) {
      feature = latest;
      if (latest.on !== lastState) {
        lastState = latest.on;
        state.replaceChildren(latest.on ? chip(word('on'), 'good') : chip(word('off'), 'bad'));
      }
      setText(cause, stateText(latest));
      for (const [value, element] of buttons) {
        set(element, 'aria-pressed', String(latest.override === value));
        set(element, 'disabled', !canChange());
      }
    },
  };
}

function stateText({ on, override, cause }) {
  if (override === 'on') return t('turned on by an operator');
  if (override === 'off') return t('turned off by an operator');
  return on ? t('automatic, on') : t('automatic, off because of the {cause}', { cause: word(cause) });
}
