//! What people write wrong, and what they are told: the problem, the place, the way out.

use tidegate_core::Quota;

const ALGORITHMS_FIX: &str = "use `burst`, or one of token-bucket, leaky-bucket, fixed-window, sliding-window, \
                          sliding-strict, sliding-log, smooth, warm-up, concurrency";
const PERIODS_FIX: &str = "use one of us, ms, s, min, h, d, w";
const AMOUNT_FIX: &str = "write how much, as in `100/min`";
const POSITIVE_FIX: &str = "give a number above zero";

/// Text, the characters to blame, problem, fix.
type ErrorCase = (&'static str, &'static str, &'static str, &'static str);

const NUMBER_ERRORS: &[ErrorCase] = &[
    ("", "^", "missing: how much, as in `100/min`", AMOUNT_FIX),
    ("0/s", "^^^", "a rate of zero", POSITIVE_FIX),
    ("-5/s", "^^", "`-5` is not a number above zero", AMOUNT_FIX),
    ("NaN/s", "^^^", "`NaN` is not a number above zero", AMOUNT_FIX),
    ("inf/s", "^^^", "`inf` is not a number above zero", AMOUNT_FIX),
    ("_/s", "^", "`_` is not a number", AMOUNT_FIX),
    ("1.5.2/s", "^^^^^", "`1.5.2` is not a number", AMOUNT_FIX),
    ("5./s", "^^", "`5.` is not a number", AMOUNT_FIX),
    ("9007199254740992/s", "^^^^^^^^^^^^^^^^^^", "a rate with too many digits", "round it"),
    ("100/min burst 0", "^^^^^^^^^^^^^^^", "a burst of zero", POSITIVE_FIX),
    (
        "100/min burst -1",
        "              ^^",
        "`-1` is not a number above zero",
        "write a number after `burst`",
    ),
    ("100/min burst", "             ^", "missing: a number after `burst`", "write a number after `burst`"),
    ("100/min burst 1.5", "              ^^^", "not a whole number", "round it"),
    ("10/s burst 1MB", "           ^^^", "bytes where the rate counts requests", "give a plain number"),
    ("0 at once", "^", "a concurrency limit of zero", POSITIVE_FIX),
    ("1.5 at once", "^^^", "not a whole number", "round it"),
];

const PERIOD_AND_WORD_ERRORS: &[ErrorCase] = &[
    ("5", " ^", "missing: per what", "write `/min`, `per 10s` or `at once`"),
    ("5 per", "     ^", "missing: a period, as in `/min` or `per 10s`", PERIODS_FIX),
    ("5/fortnight", "  ^^^^^^^^^", "unknown period `fortnight`", PERIODS_FIX),
    ("5 per 0s", "^^^^^^^^", "a period of zero", POSITIVE_FIX),
    ("5 per 1.5us", "      ^^^^^", "not a whole number of microseconds", "use a smaller unit"),
    ("5 per 999999999w", "      ^^^^^^^^^^", "longer than time itself", "the longest period is 285 years"),
    ("5/månad", "  ^^^^^", "unknown period `månad`", PERIODS_FIX),
    ("fünf/min", "^^^^", "`fünf` is not a number above zero", AMOUNT_FIX),
    ("5/s ☃", "    ^", "unknown word `☃`", ALGORITHMS_FIX),
    ("100/min bust 20", "        ^^^^", "unknown word `bust`", ALGORITHMS_FIX),
    ("100/min burst 20 please", "                 ^^^^^^", "`please` does not belong here", "remove it"),
    ("3 at twice", "     ^^^^^", "missing `once`", "write `3 at once`"),
    (
        "3 at once lease",
        "               ^",
        "missing: how long a permit is held, as in `lease 30s`",
        PERIODS_FIX,
    ),
    ("3 at once lease 0s", "                ^^", "a lease of zero", POSITIVE_FIX),
    ("3/s concurrency", "^^^^^^^^^^^^^^^", "a concurrency limit has no period", "write `3 at once`"),
];

const ALGORITHM_PARAMETER_ERRORS: &[ErrorCase] = &[
    (
        "10/s warm-up 4s cold 0.5",
        "                     ^^^",
        "a cold factor of 0.5",
        "give a number from 1 to 1000000",
    ),
    ("10/s warm-up", "            ^", "missing: how long to warm up, as in `warm-up 4s`", PERIODS_FIX),
    ("10/s warm-up 0s", "             ^^", "a warm-up of zero", POSITIVE_FIX),
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

const INEXACT_ERRORS: &[ErrorCase] = &[
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
fn quota_error_shows_problem_span_and_fix() {
    for (text, carets, problem, fix) in
        [NUMBER_ERRORS, PERIOD_AND_WORD_ERRORS, ALGORITHM_PARAMETER_ERRORS, INEXACT_ERRORS].concat()
    {
        let message = match text.parse::<Quota>() {
            Ok(quota) => panic!("{text} was read as {quota}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(message, format!("{problem}\n  {text}\n  {carets}\n{fix}"));
    }
}
