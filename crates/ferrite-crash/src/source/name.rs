//! The names of workloads: a search prints them, and a replay reads them.
//!
//! The text form is the source, `@` and a number if operations carry tokens, and `/` and indices if shrinking has
//! dropped some: `churn:7@3/0,4,5`.

use std::fmt;
use std::str::FromStr;

use super::{Source, Workload, tokens};

/// A workload's name: its source, its tokens, and the operations left after shrinking.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Name {
    /// Its source.
    pub source: Source,
    /// The number from which tokens are drawn; `None`: no operation carries one.
    pub tokens: Option<u64>,
    /// Indices of the operations that are kept; `None`: all.
    pub kept: Option<Vec<usize>>,
}

impl From<Source> for Name {
    /// All operations, without tokens.
    fn from(source: Source) -> Self {
        Name {
            source,
            tokens: None,
            kept: None,
        }
    }
}

impl Name {
    /// The same operations with tokens drawn from this number.
    pub fn with_tokens(self, number: u64) -> Self {
        Name {
            tokens: Some(number),
            ..self
        }
    }

    /// The workload after shrinking. An operation keeps its token when others are dropped.
    pub fn workload(&self) -> Workload {
        let mut workload = self.source.workload();
        if let Some(number) = self.tokens {
            workload.tokens = tokens::draw(&workload.threads, number);
        }
        if let Some(kept) = &self.kept {
            workload.turns.keep(kept);
            keep(&mut workload.threads, kept);
            keep(&mut workload.tokens, kept);
        }
        workload
    }
}

/// Drops all operations except those with these indices, which count through all threads.
fn keep<T>(threads: &mut [Vec<T>], kept: &[usize]) {
    let mut index = 0;
    for of_thread in threads {
        of_thread.retain(|_| {
            index += 1;
            kept.contains(&(index - 1))
        });
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.source)?;
        if let Some(number) = self.tokens {
            write!(f, "@{number}")?;
        }
        if let Some(kept) = &self.kept {
            let kept: Vec<_> = kept.iter().map(usize::to_string).collect();
            write!(f, "/{}", kept.join(","))?;
        }
        Ok(())
    }
}

impl FromStr for Name {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "{text:?} is no workload: want pair:N, triple:N, random:PROFILE:SEED, relay:PROFILE:SEED, churn:SEED, \
                 crowd:SEED, reuse:SEED, clones:SEED, scene:SEED or threads:SEED, then @TOKENS if operations carry \
                 tokens"
            )
        };
        let (rest, kept) = match text.split_once('/') {
            Some((rest, kept)) => (rest, Some(kept)),
            None => (text, None),
        };
        let (source, tokens) = match rest.split_once('@') {
            Some((source, number)) => (source, Some(number.parse().map_err(|_| wrong())?)),
            None => (rest, None),
        };
        let parts: Vec<_> = source.split(':').collect();
        let number = |index: usize| parts.get(index).and_then(|part| part.parse().ok()).ok_or_else(wrong);
        let source = match (parts[0], parts.len()) {
            ("pair", 2) => Source::Pair(number(1)?),
            ("triple", 2) => Source::Triple(number(1)?),
            ("random", 3) => Source::Random(number(1)?, number(2)?),
            ("relay", 3) => Source::Relay(number(1)?, number(2)?),
            ("churn", 2) => Source::Churn(number(1)?),
            ("crowd", 2) => Source::Crowd(number(1)?),
            ("reuse", 2) => Source::Reuse(number(1)?),
            ("clones", 2) => Source::Clones(number(1)?),
            ("scene", 2) => Source::Scene(number(1)?),
            ("threads", 2) => Source::Threads(number(1)?),
            _ => return Err(wrong()),
        };
        let kept = kept.map(|kept| {
            let indices = kept.split(',').filter(|index| !index.is_empty());
            indices.map(|index| index.parse().map_err(|_| wrong())).collect()
        });
        Ok(Name {
            source,
            tokens,
            kept: kept.transpose()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let sources = [
            Source::Pair(7),
            Source::Triple(8),
            Source::Random(2, 9),
            Source::Relay(0, 3),
            Source::Churn(1),
            Source::Crowd(2),
            Source::Reuse(3),
            Source::Clones(6),
            Source::Scene(5),
            Source::Threads(4),
        ];
        for source in sources {
            for tokens in [None, Some(0), Some(17)] {
                for kept in [None, Some(vec![]), Some(vec![0, 3, 12])] {
                    let name = Name { source, tokens, kept };
                    assert_eq!(name.to_string().parse(), Ok(name));
                }
            }
        }
        for wrong in [
            "",
            "pair",
            "pair:x",
            "random:1",
            "triple:1:2",
            "pair:1/a",
            "pair:1@",
            "pair:1/2@3",
        ] {
            assert!(wrong.parse::<Name>().is_err(), "{wrong:?}");
        }
    }

    /// Shrinking must not change the failure it examines: a kept operation has the token it had.
    #[test]
    fn operations_keep_their_tokens() {
        for source in [Source::Random(0, 5), Source::Threads(2), Source::Scene(1)] {
            let all = Name::from(source).with_tokens(3);
            let whole = all.workload();
            let flat = |workload: &Workload| -> Vec<_> {
                let tokens = workload.tokens.iter().flatten().copied();
                workload.threads.iter().flatten().cloned().zip(tokens).collect()
            };
            let expected: Vec<_> = flat(&whole).into_iter().skip(1).step_by(2).collect();
            assert!(expected.iter().any(|(_, token)| token.is_some()), "{source}");
            let kept = (1..whole.threads.iter().map(Vec::len).sum()).step_by(2).collect();
            let name = Name {
                kept: Some(kept),
                ..all
            };
            assert_eq!(flat(&name.workload()), expected, "{source}");
        }
    }
}
