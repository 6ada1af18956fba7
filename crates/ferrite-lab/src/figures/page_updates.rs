//! HDPM figure 2: how much of a page the writes of real programs update, and the resulting cost for a file system that
//! copies pages.
//!
//! Shares are exact. Traffic differs from run to run by less than a per cent, because the engine also writes times to
//! the medium when the clock has moved.

use ferrite_vfs::trace::Event;

use super::hdpm_data::{LOGS, size_label};
use super::{Figure, Judge, bars, panel_of};
use crate::data::point;
use crate::data::{FigureData, Panel, Verdict};
use crate::error::LabError;
use crate::plan::Plan;
use crate::progress::Progress;
use crate::report::number;
use crate::traces::replay::replay;
use crate::traces::{self, Kind, PAGE, STORED, Updates};

const CDF_PANEL: &str = "Updates of at most so many bytes of a page";
const PARTIAL_PANEL: &str = "Updates of part of a page";
const MEDIUM_PANEL: &str = "Bytes to the medium for each byte written";
const UNIT: &str = "% of updates";
const SIZES: [usize; 7] = [64, 128, 256, 512, 1024, 2048, 3072];
const PARTIAL: &str = "< 4 KiB";
const WHOLE: &str = "4 KiB";
const ALL_FILES: &str = "all files";
const FOUND_FILES: &str = "files that were there";
const SETTLED: &str = "logs, all merged";
const COPIES: &str = "copy-on-write";

pub(crate) const FIGURE: Figure = Figure {
    id: "hdpm-2",
    title: "In-page update sizes of recorded programs",
    claim: "More than 30 % of the writes of Iphoto, Usr1 and Usr2 are unaligned, about 10 % of those of Facebook and \
    Twitter; only TPCC \
            is well aligned. Copy-on-write pays for each unaligned write with a copy.",
    on_fresh_pools: false,
    applies_media: false,
    steps: |plan| (STORED.len() + plan.traces.len()) as u64,
    run,
    check,
};

fn run(plan: &Plan, progress: &mut dyn Progress) -> Result<FigureData, LabError> {
    let mut cdf = bars(CDF_PANEL, "bytes of a page", "share", UNIT, false);
    cdf.lines = true;
    let partial = bars(PARTIAL_PANEL, "", "share", UNIT, false);
    let medium = bars(MEDIUM_PANEL, "", "traffic", "bytes a byte", true);
    let mut data = FigureData {
        panels: vec![cdf, partial, medium],
        notes: vec![
            "The paper's traces are not at hand; these were recorded from programs on a mounted pool, which sees each \
             write as the program \
             made it: nothing is gathered in a cache first. That the kernel cuts some where a page ends changes no \
             update. Only what comes \
             through a shared mapping arrives in whole pages."
                .into(),
            "An update is what one write changes of one page. It counts as partial also where nothing of the page was \
             there before and \
             nothing has to be copied: the traffic tells how often that is."
                .into(),
            "Traffic: lines written back and bytes streamed, journal included, for writes and new sizes. Each log is \
             merged in the end at \
             the latest, unless a write replaces its page before; the truth of a long run lies between both bars of \
             the logs."
                .into(),
        ],
    };
    for stored in STORED {
        progress.step(stored.name);
        add(&mut data, stored.name, &stored.events()?)?;
    }
    for path in &plan.traces {
        let name = path.display().to_string();
        progress.step(&name);
        add(&mut data, &name, &traces::read(path)?)?;
    }
    Ok(data)
}

/// Adds the results of one trace.
fn add(data: &mut FigureData, name: &str, events: &[Event]) -> Result<(), LabError> {
    let [cdf, partial, medium] = data.panels.as_mut_slice() else {
        return Err(LabError::Wrong("a figure of three panels has others".into()));
    };
    let put = |panel: &mut Panel, place: usize, label: &str, value: f64| {
        panel.push(name, point(place as f64, label, &mut [value]));
    };
    let updates = Updates::of(events);
    if updates.total == 0 {
        data.notes.push(format!("{name}: holds no write."));
        return Ok(());
    }
    for (place, bytes) in SIZES.into_iter().enumerate() {
        put(cdf, place, &size_label(bytes), updates.at_most_percent(bytes as u64));
    }
    let part = updates.at_most_percent(PAGE - 1);
    put(cdf, SIZES.len(), PARTIAL, part);
    put(cdf, SIZES.len() + 1, WHOLE, 100.0);
    put(partial, 0, ALL_FILES, part);
    let found = Updates::of_found(events);
    if found.total > 0 {
        put(partial, 1, FOUND_FILES, found.at_most_percent(PAGE - 1));
    }
    match (replay(events, false)?, replay(events, true)?) {
        (Some(logs), Some(copies)) => {
            put(medium, 0, LOGS, logs.written);
            put(medium, 1, SETTLED, logs.settled);
            put(medium, 2, COPIES, copies.written);
        }
        _ => data.notes.push(format!(
            "{name}: not replayed, since its files have more than 1 GiB. Its first lines (`head -n`) are a trace, too.",
        )),
    }
    Ok(())
}

/// Claims that most traces of a kind have such a share of partial updates.
fn most(judge: &mut Judge, cdf: &Panel, kind: Kind, wanted: &str, holds: impl Fn(f64) -> bool) {
    let (mut shares, mut holding) = (Vec::new(), 0);
    for stored in STORED.iter().filter(|stored| stored.kind == kind) {
        let Some(share) = cdf.value(stored.name, PARTIAL) else {
            return judge.missing(stored.name);
        };
        holding += usize::from(holds(share));
        shares.push(format!("{} {} %", stored.name, number(share)));
    }
    judge.claim(
        holding * 2 > shares.len(),
        format!(
            "updates of part of a page: {} (wanted of most: {wanted})",
            shares.join(", ")
        ),
    );
}

fn check(data: &FigureData) -> Verdict {
    let mut judge = Judge::default();
    let cdf = panel_of(data, CDF_PANEL);
    most(
        &mut judge,
        &cdf,
        Kind::Application,
        "over 30, as Iphoto and Usr",
        |share| share > 30.0,
    );
    most(
        &mut judge,
        &cdf,
        Kind::Embedded,
        "10 or more, as Facebook and Twitter",
        |share| share >= 10.0,
    );
    most(&mut judge, &cdf, Kind::PageStore, "at most 5, as TPCC", |share| {
        share <= 5.0
    });
    let partial = panel_of(data, PARTIAL_PANEL);
    for stored in STORED.iter().filter(|stored| stored.kind == Kind::Embedded) {
        match partial.value(stored.name, FOUND_FILES) {
            Some(share) => judge.claim(
                share <= 5.0,
                format!(
                    "{}, the database without its journal: {} % (wanted: at most 5)",
                    stored.name,
                    number(share)
                ),
            ),
            None => judge.missing(&format!("{}, the database without its journal", stored.name)),
        }
    }
    copies_cost(&mut judge, &cdf, &panel_of(data, MEDIUM_PANEL));
    let users = cdf
        .series
        .iter()
        .filter(|series| STORED.iter().all(|stored| stored.name != series.name));
    for name in users.map(|series| &series.name) {
        if let Some(share) = cdf.value(name, PARTIAL) {
            judge.remark(format!(
                "{}: {} % of the updates are of part of a page.",
                name,
                number(share)
            ));
        }
    }
    judge.verdict(
        "the traces are of other programs than the paper's; how a program buffers decides how much of a page its \
         writes update.",
    )
}

/// Claims that copying pages writes more than logging, wherever many updates are partial.
fn copies_cost(judge: &mut Judge, cdf: &Panel, medium: &Panel) {
    for stored in STORED {
        let Some(share) = cdf.value(stored.name, PARTIAL).filter(|&share| share > 30.0) else {
            continue;
        };
        match (medium.value(stored.name, LOGS), medium.value(stored.name, COPIES)) {
            (Some(logs), Some(copies)) => judge.claim(
                copies > logs,
                format!(
                    "{} ({} % partial): copying writes {} times as much as logs (wanted: more)",
                    stored.name,
                    number(share),
                    number(copies / logs)
                ),
            ),
            _ => judge.missing(&format!("{}: what it writes to the medium", stored.name)),
        }
    }
    let dearer = STORED.iter().filter(|stored| {
        let values = (medium.value(stored.name, SETTLED), medium.value(stored.name, COPIES));
        matches!(values, (Some(settled), Some(copies)) if settled > copies)
    });
    let dearer: Vec<_> = dearer.map(|stored| stored.name).collect();
    if !dearer.is_empty() {
        judge.remark(format!(
            "Where files are written once and their logs merged afterwards, this costs more than copying at once: {}.",
            dearer.join(", ")
        ));
    }
}
