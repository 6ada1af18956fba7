//! The images of a crash point that are tried.
//!
//! With few lines in flight: every subset of them. With more: nothing, everything, each line alone missing, each alone
//! present, pairs missing, and random subsets torn at words; as many of each kind as the budget allows, picked by the
//! seed.

use ferrite_pm::Choice;
use ferrite_testkit::rng::Rng;

/// The choices for a crash point with `lines` in flight, about `budget` of them.
pub fn choices(lines: usize, budget: usize, seed: u64) -> Vec<Choice> {
    let mut rng = Rng::new(seed);
    let mut list = vec![Choice::None, Choice::All];
    if lines == 0 {
        list.truncate(1);
        return list;
    }
    let torn = (budget / 4).max(2);
    if lines < 16 && 1 << lines <= budget {
        list.extend((1..(1u64 << lines) - 1).map(Choice::Lines));
    } else {
        let each = (budget.saturating_sub(torn + 2) / 3).max(1);
        let picked = |rng: &mut Rng| -> Vec<usize> {
            match lines <= each {
                true => (0..lines).collect(),
                false => (0..each).map(|_| rng.below(lines as u64) as usize).collect(),
            }
        };
        list.extend(picked(&mut rng).into_iter().map(Choice::AllButLine));
        list.extend(picked(&mut rng).into_iter().map(Choice::OnlyLine));
        list.extend((0..each).filter_map(|_| {
            let (a, b) = (rng.below(lines as u64) as usize, rng.below(lines as u64) as usize);
            (a != b).then_some(Choice::AllButPair(a, b))
        }));
    }
    list.extend((0..torn).map(|_| Choice::Random(rng.next_u64())));
    list
}

/// The text form of a choice.
pub fn name(choice: Choice) -> String {
    match choice {
        Choice::None => "none".into(),
        Choice::All => "all".into(),
        Choice::OnlyLine(n) => format!("only:{n}"),
        Choice::AllButLine(n) => format!("without:{n}"),
        Choice::AllButPair(n, m) => format!("without:{n}:{m}"),
        Choice::Lines(mask) => format!("lines:{mask}"),
        Choice::Random(seed) => format!("random:{seed}"),
    }
}

/// Parses the output of [`name`].
///
// The text is not a choice; the error says why.
/// In words, if it is not a choice.
pub fn parse(text: &str) -> Result<Choice, String> {
    let wrong = || format!("{text:?} is no choice of lines");
    let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
    let numbers: Vec<u64> = rest
        .split(':')
        .filter(|part| !part.is_empty())
        .map(|part| part.parse().map_err(|_| wrong()))
        .collect::<Result<_, _>>()?;
    match (kind, &numbers[..]) {
        ("none", []) => Ok(Choice::None),
        ("all", []) => Ok(Choice::All),
        ("only", &[n]) => Ok(Choice::OnlyLine(n as usize)),
        ("without", &[n]) => Ok(Choice::AllButLine(n as usize)),
        ("without", &[n, m]) => Ok(Choice::AllButPair(n as usize, m as usize)),
        ("lines", &[mask]) => Ok(Choice::Lines(mask)),
        ("random", &[seed]) => Ok(Choice::Random(seed)),
        _ => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_lines_give_every_subset_and_many_every_single_one() {
        let few = choices(3, 16, 1);
        assert!((1..7).all(|mask| few.contains(&Choice::Lines(mask))));
        let many = choices(12, 100, 1);
        assert!((0..12).all(|n| many.contains(&Choice::OnlyLine(n)) && many.contains(&Choice::AllButLine(n))));
        assert!(choices(500, 40, 1).len() <= 40, "the budget holds");
        assert_eq!(choices(0, 40, 1), [Choice::None], "nothing is in flight: one image");
        for choice in few.into_iter().chain(many) {
            assert_eq!(parse(&name(choice)), Ok(choice));
        }
    }
}
