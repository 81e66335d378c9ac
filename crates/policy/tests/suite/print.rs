//! Printed policies parse to the same policy in every format, and malformed input never panics.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use proptest::{collection::vec, prelude::*};
use tidegate_core::{LARGEST_EXACT, Quota};
use tidegate_policy::{Policy, PolicyFormat, model::BandwidthRate};
use tidegate_testkit::strategy::runner_with_cases;

#[test]
fn printed_policies_round_trip() {
    let property = |policy: Policy| {
        for format in PolicyFormat::ALL {
            let text = policy.print(format);
            let read = Policy::parse(&text, format);
            match read {
                Ok(read) => prop_assert_eq!(&read, &policy, "{:?}\n{}", format, text),
                Err(problems) => prop_assert!(false, "{format:?}: {problems}\n{text}"),
            }
        }
        // The output is canonical: parsing and printing it again returns the same text.
        let text = policy.to_string();
        prop_assert_eq!(text.parse::<Policy>().unwrap().to_string(), text);
        Ok(())
    };
    runner_with_cases(400).run(&crate::strategies::policies(), property).unwrap();
}

/// A size with a unit is read as an amount of a quota, which must be smaller.
#[test]
fn large_sizes_are_printed_as_plain_numbers() {
    let third = LARGEST_EXACT / 3;
    for (after, printed) in
        [(third - 1, "3002.399751580329TB"), (third, "3002399751580330"), (third + 1, "3002399751580331")]
    {
        let rate = BandwidthRate { after, ..BandwidthRate::from("10B/s".parse::<Quota>().unwrap()) };
        assert_eq!(rate.to_string(), format!("10B/s after {printed}"));
        assert_eq!(rate.to_string().parse(), Ok(rate));
    }
}

#[test]
fn malformed_input_yields_valid_problems() {
    // Bytes, and policies with some of their characters changed, dropped, doubled and swapped.
    let signs = "\n\t -:,[]{}#&*!|>'\"%@`?~=.\\/$0azé\u{0}\u{feff}<";
    let change = (any::<prop::sample::Index>(), 0_u8..4, any::<prop::sample::Index>());
    let changed =
        (crate::strategies::policies(), prop::sample::select(PolicyFormat::ALL.to_vec()), vec(change, 1..6))
            .prop_map(move |(policy, format, changes)| {
                let mut text: Vec<char> = policy.print(format).chars().collect();
                for (at, how, which) in changes {
                    if text.is_empty() {
                        break;
                    }
                    let at = at.index(text.len());
                    let sign = signs.chars().nth(which.index(signs.chars().count())).unwrap();
                    match how {
                        0 => text[at] = sign,
                        1 => text.insert(at, sign),
                        2 => {
                            text.remove(at);
                        }
                        _ => text.truncate(at),
                    }
                }
                (text.into_iter().collect::<String>(), format)
            });
    let noise = prop_oneof![
        vec(any::<u8>(), 0..200).prop_map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
        vec(prop::sample::select(signs.chars().collect::<Vec<_>>()), 0..60)
            .prop_map(|all| all.into_iter().collect()),
    ];
    let noise = (noise, prop::sample::select(PolicyFormat::ALL.to_vec()));
    let property = |(text, format): (String, PolicyFormat)| {
        if let Err(problems) = Policy::parse(&text, format) {
            prop_assert!(problems.count() > 0);
            for problem in &problems {
                let shown = problem.to_string();
                prop_assert!(!problem.problem().is_empty() && !problem.fix().is_empty(), "{shown}");
                prop_assert!(!problem.problem().contains('\n') && !problem.fix().contains('\n'), "{shown:?}");
            }
        }
        Ok(())
    };
    runner_with_cases(700).run(&changed, property).unwrap();
    runner_with_cases(3_000).run(&noise, property).unwrap();
}
