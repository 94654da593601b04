//! One table of answers as models write them, with the integers that public graders see in them.

use proptest::prelude::*;

use super::*;

const CASES: [(&str, Option<i64>); 88] = [
    // The issue's.
    (r"so \boxed{336^\circ} (see step 12)", Some(336)),
    // Boxes.
    (r"\boxed{336}", Some(336)),
    (r"$\boxed{336}$.", Some(336)),
    (r"$$\boxed{ 336 }$$", Some(336)),
    (r"\fbox{336}", Some(336)),
    (r"\boxed 336", Some(336)),
    (r"$\boxed 336$ and 12", Some(336)),
    (r"\boxed {336}", Some(336)),
    (r"first \boxed{12}, then \boxed{336}", Some(336)),
    (r"\fbox{12} \boxed{336}", Some(336)),
    (r"\boxed{336} \fbox{12}", Some(12)),
    (r"\boxed{336} \boxed{}", Some(336)),
    (r"\boxed{12} or rather \boxed{x+1}", None),
    (r"\boxed{336} and \boxed{9", Some(336)),
    (r"unclosed \boxed{9", Some(9)),
    (r"\boxed{\boxed{336}}", Some(336)),
    (r"\boxed{x+1}, and 5 more", None),
    (r"\boxed{\{336\}} 12", None),
    // Faces and texts.
    (r"\boxed{\text{336}}", Some(336)),
    (r"\boxed{\textbf{336}}", Some(336)),
    (r"\boxed{\mathbf{336}}", Some(336)),
    (r"\boxed{\text{The answer is } 336}", Some(336)),
    (r"\boxed{\textbf{(B)}\ 336}", Some(336)),
    (r"\boxed{336 \text{ (see step 12)}}", Some(336)),
    // Units.
    (r"\boxed{336\text{ cm}}", Some(336)),
    (r"\boxed{336\text{ cm}^2}", Some(336)),
    (r"\boxed{336\,\mathrm{cm}^{2}}", Some(336)),
    (r"\boxed{336 \text{ square units}}", Some(336)),
    (r"\boxed{336 square units}", Some(336)),
    (r"\boxed{336cm}", Some(336)),
    (r"\boxed{336 cm^2}", Some(336)),
    (r"\boxed{336^{\circ}}", Some(336)),
    (r"\boxed{336°}", Some(336)),
    (r"\boxed{336 degrees}", Some(336)),
    (r"\boxed{336\degree}", Some(336)),
    (r"\boxed{\$336}", Some(336)),
    (r"\boxed{336\%}", Some(336)),
    (r"\boxed{336x}", None),
    (r"\boxed{336 n}", None),
    (r"\boxed{336\pi}", None),
    (r"\boxed{\sqrt{336}}", None),
    (r"\boxed{336^2}", None),
    (r"\boxed{2^{10}}", None),
    (r"\boxed{336i}", None),
    // Separators.
    (r"\boxed{1,234}", Some(1234)),
    (r"\boxed{1{,}234}", Some(1234)),
    (r"\boxed{1,\!234,\!567}", Some(1_234_567)),
    (r"\boxed{1\,234}", Some(1234)),
    (r"\boxed{1 234}", Some(1234)),
    (r"\boxed{1,2}", None),
    (r"\boxed{1, 234}", None),
    (r"\boxed{12, 34}", None),
    // Decimals and leading zeros.
    (r"\boxed{336.0}", Some(336)),
    (r"\boxed{336.00}", Some(336)),
    (r"\boxed{336.}", Some(336)),
    (r"\boxed{336.5}", None),
    (r"\boxed{.5}", None),
    (r"\boxed{042}", Some(42)),
    (r"\boxed{007}", Some(7)),
    (r"\boxed{000}", Some(0)),
    // Fractions.
    (r"\boxed{\frac{672}{2}}", Some(336)),
    (r"\boxed{\dfrac{672}{2}}", Some(336)),
    (r"\boxed{-\tfrac{672}{2}}", Some(-336)),
    (r"\boxed{\frac62}", Some(3)),
    (r"\boxed{672/2}", Some(336)),
    (r"\boxed{\frac{1}{2}}", None),
    (r"\boxed{1/2}", None),
    (r"\boxed{\frac{1}{0}}", None),
    // Signs and brackets.
    (r"\boxed{-336}", Some(-336)),
    (r"\boxed{−336}", Some(-336)),
    (r"\boxed{+336}", Some(336)),
    (r"\boxed{\left( 336 \right)}", Some(336)),
    (r"\boxed{$336$}", Some(336)),
    (r"\boxed{m+n = 336}", Some(336)),
    (r"\boxed{99999999999999999999}", None),
    // Without a box.
    ("The answer is 336.", Some(336)),
    ("The final answer is $336$. I hope it is correct, after 12 steps.", Some(336)),
    ("**Answer:** 336 (from step 12)", Some(336)),
    ("The answer is $m+n = 100 + 236 = 336$, by lemma 3", Some(336)),
    ("The answer is 1,234.", Some(1234)),
    ("#### 336", Some(336)),
    ("Answer: 1/2", None),
    ("so we get 336.0", Some(336)),
    ("it follows that x = -5", Some(-5)),
    ("see 3-5", Some(5)),
    ("pick 1,2", Some(2)),
    ("<think>The answer is 12.</think>It is 336", Some(336)),
    ("none", None),
];

#[test]
fn answers_are_found_as_public_graders_find_them() {
    let wrong: Vec<_> = CASES
        .iter()
        .filter(|(text, answer)| extract_answer(text) != *answer)
        .map(|(text, answer)| format!("{text}: {:?}, expected {answer:?}", extract_answer(text)))
        .collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

proptest! {
    #[test]
    fn every_way_to_write_an_integer_is_that_integer(value in -999_999_999i64..=999_999_999) {
        for text in [
            format!("{value}"), format!("{value}.0"), format!("${value}$"), format!("{value}^\\circ"),
            format!("\\frac{{{}}}{{7}}", value * 7), format!("{value}\\text{{ cm}}^3"), format!("x = {value}"),
        ] {
            prop_assert_eq!(extract_answer(&format!("in 12 steps \\boxed{{{text}}}, see 13")), Some(value), "{}", text);
        }
    }

    #[test]
    fn no_text_is_too_strange(text in "(\\\\boxed|\\\\fbox|\\\\frac|\\\\text|answer is|[{}$^.,/=0-9 \\\\−é-]){0,40}") {
        let _any = extract_answer(&text);
    }
}
