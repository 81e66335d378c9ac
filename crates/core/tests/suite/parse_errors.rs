//! Errors of invalid quotas: the problem, its position and the fix.

use tidegate_core::Quota;

const MONTH_FIX: &str = "write `5/month fixed-window in UTC` with your time zone, or `5 per 30d`";
const DAYS_FIX: &str = "write a number of days, as in `30d`";
const ALGORITHMS_FIX: &str = "use `burst`, `initial`, or one of token-bucket, leaky-bucket, fixed-window, sliding-window, \
                          sliding-strict, sliding-log, smooth, warm-up, concurrency, total, calendar-window";
const PERIODS_FIX: &str = "use one of us, ms, s, min, h, d, w";
const AMOUNT_FIX: &str = "write an amount, as in `100/min`";
const POSITIVE_FIX: &str = "give a number above zero";

/// The text, the carets, the problem and the fix.
type ErrorCase = (&'static str, &'static str, &'static str, &'static str);

const NUMBER_ERRORS: &[ErrorCase] = &[
    ("", "^", "expected an amount, as in `100/min`", AMOUNT_FIX),
    ("0/s", "^^^", "a rate must not be zero", POSITIVE_FIX),
    ("-5/s", "^^", "`-5` is not a number above zero", AMOUNT_FIX),
    ("NaN/s", "^^^", "`NaN` is not a number above zero", AMOUNT_FIX),
    ("inf/s", "^^^", "`inf` is not a number above zero", AMOUNT_FIX),
    ("_/s", "^", "`_` is not a number", AMOUNT_FIX),
    ("1.5.2/s", "^^^^^", "`1.5.2` is not a number", AMOUNT_FIX),
    ("5./s", "^^", "`5.` is not a number", AMOUNT_FIX),
    ("9007199254740992/s", "^^^^^^^^^^^^^^^^^^", "too many digits in the rate", "round it"),
    ("100/min burst 0", "^^^^^^^^^^^^^^^", "a burst must not be zero", POSITIVE_FIX),
    (
        "100/min burst -1",
        "              ^^",
        "`-1` is not a number above zero",
        "write a number after `burst`",
    ),
    ("100/min burst", "             ^", "expected a number after `burst`", "write a number after `burst`"),
    ("100/min burst 1.5", "              ^^^", "not a whole number", "round it"),
    ("10/s burst 1MB", "           ^^^", "byte unit for a rate of requests", "remove the unit"),
    ("0 at once", "^", "a concurrency limit must not be zero", POSITIVE_FIX),
    ("1.5 at once", "^^^", "not a whole number", "round it"),
];

const PERIOD_AND_WORD_ERRORS: &[ErrorCase] = &[
    ("5", " ^", "missing period", "write `/min`, `per 10s`, `at once` or `total`"),
    ("5 per", "     ^", "expected a period, as in `/min` or `per 10s`", PERIODS_FIX),
    ("5/fortnight", "  ^^^^^^^^^", "unknown period `fortnight`", PERIODS_FIX),
    ("5 per 0s", "^^^^^^^^", "a period must not be zero", POSITIVE_FIX),
    ("5 per 1.5us", "      ^^^^^", "not a whole number of microseconds", "use a smaller unit"),
    ("5 per 999999999w", "      ^^^^^^^^^^", "period too long", "the longest period is 285 years"),
    ("5/månad", "  ^^^^^", "unknown period `månad`", PERIODS_FIX),
    ("fünf/min", "^^^^", "`fünf` is not a number above zero", AMOUNT_FIX),
    ("5/s ☃", "    ^", "unknown word `☃`", ALGORITHMS_FIX),
    ("100/min bust 20", "        ^^^^", "unknown word `bust`", ALGORITHMS_FIX),
    ("100/min burst 20 please", "                 ^^^^^^", "unexpected `please`", "remove it"),
    ("3 at twice", "     ^^^^^", "missing `once`", "write `3 at once`"),
    ("3 at once lease", "               ^", "expected a lease duration, as in `lease 30s`", PERIODS_FIX),
    ("3 at once lease 0s", "                ^^", "a lease must not be zero", POSITIVE_FIX),
    ("10/s initial", "            ^", "expected a number after `initial`", "write a number after `initial`"),
    ("10/s burst 5 initial 6", "                     ^", "initial 6 exceeds burst 5", "use at most 5"),
    ("10/s initial 11", "             ^^", "initial 11 exceeds burst 10", "use at most 10"),
    ("10/s initial 2 burst 5", "               ^^^^^", "unexpected `burst`", "remove it"),
    ("5/month", "  ^^^^^", "a month has no fixed length", MONTH_FIX),
    ("5/month burst 2", "  ^^^^^", "a month has no fixed length", MONTH_FIX),
    ("5/month fixed-window", "  ^^^^^", "a month has no fixed length", MONTH_FIX),
    ("0.5/month fixed-window in UTC", "^^^", "not a whole number", "round it"),
    ("2.5/month fixed-window in UTC", "^^^", "not a whole number", "round it"),
    ("0.5B per month fixed-window in UTC", "^^^^", "not a whole number", "round it"),
    ("5 per 2month", "       ^^^^^", "a month has no fixed length", DAYS_FIX),
    ("10/s warm-up month", "             ^^^^^", "a month has no fixed length", DAYS_FIX),
    ("3 at once lease month", "                ^^^^^", "a month has no fixed length", DAYS_FIX),
    (
        "0.5/d fixed-window in UTC",
        "^^^^^^^^^^^^^^^^^^^^^",
        "2d is not a period of the calendar",
        "use day, week or month with a time zone",
    ),
    (
        "5/h fixed-window in UTC",
        "^^^^^^^^^^^^^^^^^^^",
        "1h is not a period of the calendar",
        "use day, week or month with a time zone",
    ),
    (
        "5/d fixed-window in",
        "                   ^",
        "missing time zone",
        "write its name, as in `fixed-window in Asia/Shanghai`",
    ),
    (
        "5/d fixed-window in Asia/Shangai",
        "                    ^^^^^^^^^^^^",
        "unknown time zone `Asia/Shangai`",
        "did you mean `Asia/Shanghai`?",
    ),
    (
        "5/d fixed-window in berlin",
        "                    ^^^^^^",
        "unknown time zone `berlin`",
        "did you mean `Europe/Berlin`?",
    ),
    (
        "5/d fixed-window in Nowhere",
        "                    ^^^^^^^",
        "unknown time zone `Nowhere`",
        "write a name of the IANA database, as in `Asia/Shanghai` or `UTC`",
    ),
    ("5/d fixed-window in UTC burst 2", "                        ^^^^^", "unexpected `burst`", "remove it"),
    ("0 total", "^", "a total must not be zero", POSITIVE_FIX),
    ("1.5 total", "^^^", "not a whole number", "round it"),
    ("5 total burst 2", "        ^^^^^", "unexpected `burst`", "remove it"),
    ("5MB/s total", "^^^^^^^^^^^", "a total has no period", "write `5MB total`"),
    ("3/s concurrency", "^^^^^^^^^^^^^^^", "a concurrency limit has no period", "write `3 at once`"),
];

const ALGORITHM_PARAMETER_ERRORS: &[ErrorCase] = &[
    (
        "10/s warm-up 4s cold 0.5",
        "                     ^^^",
        "a cold factor of 0.5 is out of range",
        "give a number from 1 to 1000000",
    ),
    ("10/s warm-up", "            ^", "expected a warm-up duration, as in `warm-up 4s`", PERIODS_FIX),
    ("10/s warm-up 0s", "             ^^", "a warm-up must not be zero", POSITIVE_FIX),
    (
        "100/min sliding-strict 7",
        "                       ^",
        "1min cannot be divided into 7 equal parts of whole microseconds",
        "use a number of parts that divides the period, at most 3600",
    ),
    (
        "100/min sliding-strict",
        "                      ^",
        "expected a number of parts, as in `sliding-strict 60`",
        "write a number of parts, as in `sliding-strict 60`",
    ),
    (
        "10/s leaky-bucket queue 2 delay 5",
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "delay 5 exceeds queue 2",
        "use at most 2",
    ),
    (
        "1000000/s sliding-log",
        "^^^^^^^^^^^^^^^^^^^^^",
        "a log of 1000000 timestamps per key is too long",
        "use at most 131072, or `sliding-strict 60`, which also never exceeds the limit",
    ),
];

const INEXACT_ERRORS: &[ErrorCase] = &[
    (
        "123456789/d",
        "^^^^^^^^^^^",
        "123456789/d with a capacity of 123456789 cannot be counted exactly: \
         123456789 x 9600000000 units exceed 4503599627370495",
        "use 123456000/d, a smaller burst or a shorter period",
    ),
    (
        "600000001/s burst 9007199254740",
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "600000001/s with a capacity of 9007199254740 cannot be counted exactly: \
         9007199254740 x 1000000 units exceed 4503599627370495",
        "use 600000000/s, a smaller burst or a shorter period",
    ),
    (
        "1000000000 per 86400000011us sliding-window",
        "^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "1000000000 per 86400000011us cannot be counted exactly: 1000000000 tokens in each tick of the window",
        "use a smaller amount, or a period with more small divisors, such as a whole number of seconds",
    ),
];

#[test]
fn quota_error_shows_problem_span_and_fix() {
    for (text, carets, problem, fix) in
        [NUMBER_ERRORS, PERIOD_AND_WORD_ERRORS, ALGORITHM_PARAMETER_ERRORS, INEXACT_ERRORS].concat()
    {
        let message = match text.parse::<Quota>() {
            Ok(quota) => panic!("{text} was parsed as {quota}"),
            Err(error) => error.to_string(),
        };
        assert_eq!(message, format!("{problem}\n  {text}\n  {carets}\n{fix}"));
    }
}
