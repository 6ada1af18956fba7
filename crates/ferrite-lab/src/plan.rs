//! The size of an experiment.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Sizes and counts of a run. All of it is printed with the results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// Its name.
    pub name: String,
    /// Pages of the file that the paper makes 1 GiB long.
    pub file_pages: u32,
    /// Pages of the largest file (the paper's: 4 GiB).
    pub large_file_pages: u32,
    /// Data blocks of the pool that is filled to 95 %.
    pub pool_blocks: u32,
    /// Times that a mapping alone is measured, each on fresh pools: the placement of memory matters more than chance
    /// does.
    pub pools: u32,
    /// Cold operations of each kind, on each pool.
    pub cold_samples: u32,
    /// Hot operations of each kind.
    pub hot_operations: u32,
    /// Rounds of each end-to-end measurement.
    pub rounds: u32,
    /// Length of such a round in milliseconds.
    pub round_ms: u64,
    /// Numbers of threads.
    pub threads: Vec<u32>,
    /// Files of a file-system mix, for each thread.
    pub mix_files: u32,
    /// Pairs of 1 KiB that YCSB begins with (the paper's: 1.6 million); fewer where memory does not suffice.
    #[serde(default)]
    pub ycsb_pairs: u32,
    /// Rounds of each workload of YCSB: many short ones, because a throughput with several threads varies.
    #[serde(default)]
    pub ycsb_rounds: u32,
    /// Operations of such a round.
    #[serde(default)]
    pub ycsb_operations: u32,
    /// Layout score where a figure does not vary it.
    pub layout_score: f64,
    /// Nanoseconds added for each line of the structure that a cold operation misses: a slower medium. 0: none. Figures
    /// of single cold pages apply it (HashFS 5, 6, 7, 9); an insert counts the lines of a lookup of its page.
    pub media_extra_ns: f64,
    /// Seed of everything random.
    pub seed: u64,
    /// Users' own traces, for the figure of recorded programs to show beside the stored ones.
    #[serde(default)]
    pub traces: Vec<PathBuf>,
}

impl Plan {
    /// All figures in minutes on two cores; sizes are scaled down.
    pub fn quick() -> Plan {
        Plan {
            name: "quick".into(),
            file_pages: 1 << 18,
            large_file_pages: 1 << 19,
            pool_blocks: 1 << 18,
            pools: 3,
            cold_samples: 30,
            hot_operations: 50_000,
            rounds: 9,
            round_ms: 150,
            threads: vec![1, 2, 4],
            mix_files: 300,
            ycsb_pairs: 40_000,
            ycsb_rounds: 25,
            ycsb_operations: 3_000,
            layout_score: 0.85,
            media_extra_ns: 0.0,
            seed: 0x00fe_2217_e1ab,
            traces: Vec::new(),
        }
    }

    /// The sizes of the papers, as far as memory allows.
    pub fn full() -> Plan {
        Plan {
            name: "full".into(),
            file_pages: 1 << 18,
            large_file_pages: 1 << 20,
            pool_blocks: 1 << 20,
            pools: 5,
            cold_samples: 100,
            hot_operations: 100_000,
            rounds: 11,
            round_ms: 500,
            threads: vec![1, 2, 4, 8],
            mix_files: 1000,
            ycsb_pairs: 1_600_000,
            ycsb_rounds: 11,
            ycsb_operations: 100_000,
            ..Plan::quick()
        }
    }

    /// The smallest possible run; for tests. Its numbers mean nothing.
    pub fn tiny() -> Plan {
        Plan {
            name: "tiny".into(),
            file_pages: 1 << 11,
            large_file_pages: 1 << 12,
            pool_blocks: 1 << 12,
            pools: 2,
            cold_samples: 3,
            hot_operations: 500,
            rounds: 2,
            round_ms: 5,
            threads: vec![1, 2],
            mix_files: 20,
            ycsb_pairs: 2000,
            ycsb_rounds: 2,
            ycsb_operations: 200,
            ..Plan::quick()
        }
    }

    /// The differences of its sizes from the papers', for the report; and whether the media model applies, which
    /// depends on the figure.
    pub(crate) fn scale(&self, applies_media: bool) -> String {
        let mib = |pages: u32| u64::from(pages) * 4096 / (1 << 20);
        let media = match (self.media_extra_ns > 0.0, applies_media) {
            (false, _) => "media model off".into(),
            (true, true) => format!("media model on: {} ns added a missed line", self.media_extra_ns),
            (true, false) => "media model not applied in this figure".into(),
        };
        format!(
            "plan {}: file {} MiB (paper 1 GiB), largest file {} MiB (paper 4 GiB), pool {} MiB (paper 128 GiB), {} \
             cold samples and {} \
             hot operations on each of {} pools, {} rounds of {} ms, layout score {} unless varied; {media}",
            self.name,
            mib(self.file_pages),
            mib(self.large_file_pages),
            mib(self.pool_blocks),
            self.cold_samples,
            self.hot_operations,
            self.pools,
            self.rounds,
            self.round_ms,
            self.layout_score,
        )
    }
}
