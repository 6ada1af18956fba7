//! Cache misses of cold lookups in each mapping, where the CPU counts them. The lab measures.

use ferrite_lab::{ChurnPlan, miss_rows};

use super::{Output, say, say_json};
use crate::{Failure, complain};

/// Name of its rows.
pub(crate) const NAME: &str = "cold_misses";

/// Runs this part of the group `mapping`; where the CPU does not count misses, it prints so and does nothing.
pub(crate) fn run(quick: bool, out: &mut Output) -> Result<(), Failure> {
    if !out.wants(NAME) {
        return Ok(());
    }
    if let Some(why) = ferrite_lab::uncounted() {
        // A program may read standard output.
        complain(format_args!("{NAME}: SKIPPED: {why}"));
        return Ok(());
    }
    let plan = if quick { ChurnPlan::quick() } else { ChurnPlan::whole() };
    for row in miss_rows(&plan, &mut |_| {})? {
        if out.json {
            say_json(&row)?;
            continue;
        }
        out.head(format!(
            "{:<20} {:<8} {:>5} {:>17} {:>15} {:>7}",
            "benchmark", "mapping", "fill", "last-level misses", "L1D read misses", "lines"
        ));
        say(format!(
            "{:<20} {:<8} {:>3} % {:>17.2} {:>15.2} {:>7.2}",
            row.name, row.structure, row.fill_percent, row.last_level_misses, row.l1d_read_misses, row.lines_average,
        ));
    }
    Ok(())
}
