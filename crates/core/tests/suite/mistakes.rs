//! What people write wrong, and what they are told: the problem, the place, the way out.

use tidegate_core::Quota;

const ALGORITHMS: &str = "use `burst`, or one of token-bucket, leaky-bucket, fixed-window, sliding-window, \
                          sliding-strict, sliding-log, smooth, warm-up, concurrency";
const PERIODS: &str = "use one of us, ms, s, min, h, d, w";
const HOW_MUCH: &str = "write how much, as in `100/min`";
const ABOVE_ZERO: &str = "give a number above zero";

/// Text, the characters to blame, problem, fix.
type Mistake = (&'static str, &'static str, &'static str, &'static str);

const NUMBERS: &[Mistake] = &[
    ("", "^", "missing: how much, as in `100/min`", HOW_MUCH),
    ("0/s", "^^^", "a rate of zero", ABOVE_ZERO),
    ("-5/s", "^^", "`-5` is not a number above zero", HOW_MUCH),
    ("NaN/s", "^^^", "`NaN` is not a number above zero", HOW_MUCH),
    ("inf/s", "^^^", "`inf` is not a number above zero", HOW_MUCH),
    ("_/s", "^", "`_` is not a number", HOW_MUCH),
    ("1.5.2/s", "^^^^^", "`1.5.2` is not a number", HOW_MUCH),
    ("5./s", "^^", "`5.` is not a number", HOW_MUCH),
    ("9007199254740992/s", "^^^^^^^^^^^^^^^^^^", "a rate with too many digits", "round it"),
    ("100/min burst 0", "^^^^^^^^^^^^^^^", "a burst of zero", ABOVE_ZERO),
    (
        "100/min burst -1",
        "              ^^",
        "`-1` is not a number above zero",
        "write a number after `burst`",
    ),
    ("100/min burst", "             ^", "missing: a number after `burst`", "write a number after `burst`"),
    ("100/min burst 1.5", "              ^^^", "not a whole number", "round it"),
    ("10/s burst 1MB", "           ^^^", "bytes where the rate counts requests", "give a plain number"),
    ("0 at once", "^", "a concurrency limit of zero", ABOVE_ZERO),
    ("1.5 at once", "^^^", "not a whole number", "round it"),
];

const PERIODS_AND_WORDS: &[Mistake] = &[
    ("5", " ^", "missing: per what", "write `/min`, `per 10s` or `at once`"),
    ("5 per", "     ^", "missing: a period, as in `/min` or `per 10s`", PERIODS),
    ("5/fortnight", "  ^^^^^^^^^", "unknown period `fortnight`", PERIODS),
    ("5 per 0s", "^^^^^^^^", "a period of zero", ABOVE_ZERO),
    ("5 per 1.5us", "      ^^^^^", "not a whole number of microseconds", "use a smaller unit"),
    ("5 per 999999999w", "      ^^^^^^^^^^", "longer than time itself", "the longest period is 285 years"),
    ("5/månad", "  ^^^^^", "unknown period `månad`", PERIODS),
    ("fünf/min", "^^^^", "`fünf` is not a number above zero", HOW_MUCH),
    ("5/s ☃", "    ^", "unknown word `☃`", ALGORITHMS),
    ("100/min bust 20", "        ^^^^", "unknown word `bust`", ALGORITHMS),
    ("100/min burst 20 please", "                 ^^^^^^", "`please` does not belong here", "remove it"),
    ("3 at twice", "     ^^^^^", "missing `once`", "write `3 at once`"),
    ("3 at once lease", "               ^", "missing: how long a permit is held, as in `lease 30s`", PERIODS),
    ("3 at once lease 0s", "                ^^", "a lease of zero", ABOVE_ZERO),
    ("3/s concurrency", "^^^^^^^^^^^^^^^", "a concurrency limit has no period", "write `3 at once`"),
];

const ALGORITHM_PARAMETERS: &[Mistake] = &[
    (
        "10/s warm-up 4s cold 0.5",
        "                     ^^^",
        "a cold factor of 0.5",
        "give a number from 1 to 1000000",
    ),
    ("10/s warm-up", "            ^", "missing: how long to warm up, as in `warm-up 4s`", PERIODS),
    ("10/s warm-up 0s", "             ^^", "a warm-up of zero", ABOVE_ZERO),
    (
        "100/min sliding-strict 7",
        "                       ^",
        "1min cannot be cut into 7 equal parts of whole microseconds",
        "take a number of parts that divides the period, at most 3600",
    ),
    (
        "100/min sliding-strict",
        "                      ^",
        "missing: how many parts, as in `sliding-strict 60`",
        "write how many parts, as in `sliding-strict 60`",
    ),
    (
        "10/s leaky-bucket queue 2 delay 5",
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "delay 5 is more than queue 2",
        "give at most queue",
    ),
    (
        "1000000/s sliding-log",
        "^^^^^^^^^^^^^^^^^^^^^",
        "a log of 1000000 moments for each key is too long",
        "take at most 131072, or `sliding-strict 60`, which also never exceeds the limit",
    ),
];

const INEXACT: &[Mistake] = &[
    (
        "123456789/d",
        "^^^^^^^^^^^",
        "123456789/d with room for 123456789 cannot be counted exactly: \
         123456789 x 9600000000 steps is more than 4503599627370495",
        "123456000/d can be, or take a smaller burst or a shorter period",
    ),
    (
        "600000001/s burst 9007199254740",
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "600000001/s with room for 9007199254740 cannot be counted exactly: \
         9007199254740 x 1000000 steps is more than 4503599627370495",
        "600000000/s can be, or take a smaller burst or a shorter period",
    ),
    (
        "1000000000 per 86400000011us sliding-window",
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "1000000000 per 86400000011us cannot be counted exactly: 1000000000 tokens in each tick of the window",
        "take a smaller amount, or a period with more small divisors, such as a whole number of seconds",
    ),
];

#[test]
fn an_error_names_the_problem_the_place_and_the_way_out() {
    for (text, carets, problem, fix) in [NUMBERS, PERIODS_AND_WORDS, ALGORITHM_PARAMETERS, INEXACT].concat() {
        let told = match text.parse::<Quota>() {
            Ok(quota) => panic!("{text} was read as {quota}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(told, format!("{problem}\n  {text}\n  {carets}\n{fix}"));
    }
}
