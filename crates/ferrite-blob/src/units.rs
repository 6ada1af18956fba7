//! Which units are free: clusters, or the parts of clusters that small blobs share.
//!
//! Whole clusters are allocated from a map of clusters. Smaller requests come from clusters that other blobs share, so
//! that the rest of those fills up before another one is begun.
//!
//! Invariants: a cluster with no used unit is free in the map of clusters; one that is partly used is among the shared
//! ones. As for all free space, units that metadata names are never free here.

use std::collections::BTreeMap;

use crate::space::Bitmap;

/// How many shared clusters are searched before another cluster is shared.
const LOOKS_MAX: usize = 64;

/// See the module's head.
pub(crate) struct Units {
    /// Units of a cluster, at most 64.
    per_cluster: u32,
    clusters: Bitmap,
    /// Clusters that are partly used, with a bit for each used unit.
    shared: BTreeMap<u32, u64>,
    free_in_shared: u64,
    /// Where the last search among them ended.
    cursor: u32,
}

/// The first place with `count` clear bits in a row.
fn space_in(used: u64, count: u32) -> Option<u32> {
    let (mut starts, mut have) = (!used, 1);
    while have < count {
        let more = have.min(count - have);
        starts &= starts >> more;
        have += more;
    }
    (starts != 0).then(|| starts.trailing_zeros())
}

/// `count` bits from `first` on.
fn bits(first: u32, count: u32) -> u64 {
    (u64::MAX >> (64 - count)) << first
}

impl Units {
    pub(crate) fn new(clusters: u32, per_cluster: u32) -> Units {
        Units {
            per_cluster,
            clusters: Bitmap::new(clusters),
            shared: BTreeMap::new(),
            free_in_shared: 0,
            cursor: 0,
        }
    }

    fn all(&self) -> u64 {
        bits(0, self.per_cluster)
    }

    /// All units.
    pub(crate) fn count(&self) -> u32 {
        self.clusters.len().saturating_mul(self.per_cluster)
    }

    /// Which of these are used.
    pub(crate) fn used_among(&self, first: u32, count: u32) -> Vec<u32> {
        let units = first..first.saturating_add(count).min(self.count());
        let per = self.per_cluster;
        units
            .filter(|unit| self.used_in(unit / per) >> (unit % per) & 1 == 1)
            .collect()
    }

    /// Free units.
    pub(crate) fn free(&self) -> u64 {
        u64::from(self.clusters.free()) * u64::from(self.per_cluster) + self.free_in_shared
    }

    /// Clusters that are free as a whole.
    pub(crate) fn free_clusters(&self) -> u32 {
        self.clusters.free()
    }

    /// Which units of a cluster are used.
    fn used_in(&self, cluster: u32) -> u64 {
        match self.shared.get(&cluster) {
            Some(&used) => used,
            None if self.clusters.is_used(cluster) => self.all(),
            None => 0,
        }
    }

    fn set_used(&mut self, cluster: u32, used: u64) {
        let all = self.all();
        let free = |used: u64| u64::from((all & !used).count_ones());
        if let Some(before) = self.shared.remove(&cluster) {
            self.free_in_shared -= free(before);
        }
        match used {
            0 => self.clusters.clear(cluster),
            used => {
                self.clusters.set(cluster);
                if used != all {
                    self.shared.insert(cluster, used);
                    self.free_in_shared += free(used);
                }
            }
        }
    }

    /// Calls `each` with every cluster that has some of these units, and their bits.
    fn each_cluster(&self, first: u32, count: u32, mut each: impl FnMut(u32, u64)) {
        let (mut at, end) = (u64::from(first), u64::from(first) + u64::from(count));
        let per = u64::from(self.per_cluster);
        while at < end {
            let stop = ((at / per + 1) * per).min(end);
            each((at / per) as u32, bits((at % per) as u32, (stop - at) as u32));
            at = stop;
        }
    }

    /// The part of a range that exists.
    fn inside(&self, first: u32, count: u32) -> u32 {
        let last = u64::from(self.clusters.len()) * u64::from(self.per_cluster);
        let end = (u64::from(first) + u64::from(count)).min(last);
        end.saturating_sub(first.into()) as u32
    }

    /// Whether all of these exist, and are free.
    pub(crate) fn are_free(&self, first: u32, count: u32) -> bool {
        let inside = self.inside(first, count);
        let mut are_free = inside == count;
        self.each_cluster(first, inside, |cluster, part| {
            are_free &= self.used_in(cluster) & part == 0
        });
        are_free
    }

    /// Marks units as used that metadata names; `false` if some were used, or do not exist.
    pub(crate) fn claim(&mut self, first: u32, count: u32) -> bool {
        let is_sane = self.are_free(first, count);
        let mut parts = Vec::new();
        self.each_cluster(first, self.inside(first, count), |cluster, part| {
            parts.push((cluster, part))
        });
        for (cluster, part) in parts {
            let used = self.used_in(cluster);
            self.set_used(cluster, used | part);
        }
        is_sane
    }

    /// Gives units back.
    pub(crate) fn give(&mut self, first: u32, count: u32) {
        let mut parts = Vec::new();
        self.each_cluster(first, count, |cluster, part| parts.push((cluster, part)));
        for (cluster, part) in parts {
            let used = self.used_in(cluster);
            self.set_used(cluster, used & !part);
        }
    }

    /// Takes units, in as few pieces as possible, behind `goal` if that is free. The caller has ensured that so many
    /// are free. The count is a part of a cluster, or a multiple of one, which comes in clusters as long as there are
    /// any.
    pub(crate) fn take(&mut self, mut goal: Option<u32>, count: u32) -> Vec<(u32, u32)> {
        let (mut taken, mut left) = (Vec::new(), count);
        while left > 0 {
            let piece = match left {
                _ if left.is_multiple_of(self.per_cluster) => self.take_clusters(goal, left / self.per_cluster),
                _ if left < self.per_cluster => self.take_part(goal, left),
                // The remainder, when there were too few clusters.
                _ => None,
            };
            let Some((first, got)) = piece.or_else(|| self.take_rest(left)) else {
                break;
            };
            goal = Some(first + got);
            left -= got;
            taken.push((first, got));
        }
        taken
    }

    /// Takes up to `most` units in one piece for slots: those from `goal` on, if as many are free there as anywhere,
    /// otherwise where most clusters are free in a row; without free clusters, in one that blobs share. Where the
    /// caller cannot name another place, only at `goal`.
    pub(crate) fn take_for_slots(&mut self, goal: u32, most: u32, only_goal: bool) -> Option<(u32, u32)> {
        let per = self.per_cluster;
        let elsewhere = match only_goal {
            true => None,
            false => self
                .clusters
                .longest_run()
                .map(|(first, count)| (first * per, count * per))
                .or_else(|| self.longest_part()),
        };
        let (first, count) = elsewhere.map_or((0, 0), |(first, count)| (first, count.min(most)));
        let behind = self.free_from(goal, most);
        let taken = match behind >= count {
            true => (goal, behind),
            false => (first, count),
        };
        (taken.1 > 0).then(|| {
            self.claim(taken.0, taken.1);
            taken
        })
    }

    /// How many units are free from this one on, up to `most`.
    fn free_from(&self, first: u32, most: u32) -> u32 {
        let (mut at, end) = (first, first.saturating_add(most).min(self.count()));
        while at < end {
            let (cluster, into) = (at / self.per_cluster, at % self.per_cluster);
            let space = (self.used_in(cluster) >> into)
                .trailing_zeros()
                .min(self.per_cluster - into);
            at += space;
            if into + space < self.per_cluster {
                break;
            }
        }
        at.min(end).saturating_sub(first)
    }

    /// The most free units in a row in a partly used cluster.
    fn longest_part(&self) -> Option<(u32, u32)> {
        let not_there = !self.all();
        let mut best: Option<(u32, u32)> = None;
        for (&cluster, &used) in &self.shared {
            let longer = best.map_or(1, |(_, count)| count + 1);
            if longer > self.per_cluster {
                break;
            }
            let Some(into) = space_in(used | not_there, longer) else {
                continue;
            };
            // Where so many fit there may be a place for more.
            let more = (longer..self.per_cluster).map_while(|count| {
                let count = count + 1;
                Some((space_in(used | not_there, count)?, count))
            });
            let (into, count) = more.last().unwrap_or((into, longer));
            best = Some((cluster * self.per_cluster + into, count));
        }
        best
    }

    fn take_clusters(&mut self, goal: Option<u32>, count: u32) -> Option<(u32, u32)> {
        let per = self.per_cluster;
        let goal = goal.filter(|goal| goal.is_multiple_of(per)).map(|goal| goal / per);
        let (first, got) = self.clusters.take_run(goal, count)?;
        Some((first * per, got * per))
    }

    /// A part of a cluster, in one piece.
    fn take_part(&mut self, goal: Option<u32>, count: u32) -> Option<(u32, u32)> {
        let per = self.per_cluster;
        if let Some(goal) = goal {
            let (cluster, into) = (goal / per, goal % per);
            if let Some(&used) = self.shared.get(&cluster)
                && into + count <= per
                && used & bits(into, count) == 0
            {
                self.set_used(cluster, used | bits(into, count));
                return Some((goal, count));
            }
        }
        let not_there = !self.all();
        let shared = self.shared.range(self.cursor..).chain(self.shared.range(..self.cursor));
        let found = shared
            .take(LOOKS_MAX)
            .find_map(|(&cluster, &used)| Some((cluster, used, space_in(used | not_there, count)?)));
        let (cluster, used, into) = match found {
            Some(found) => found,
            None => {
                let (cluster, _) = self.clusters.take_run(None, 1)?;
                (cluster, 0, 0)
            }
        };
        self.cursor = cluster;
        self.set_used(cluster, used | bits(into, count));
        Some((cluster * per + into, count))
    }

    /// Any units, where no better choice exists.
    fn take_rest(&mut self, count: u32) -> Option<(u32, u32)> {
        let (&cluster, &used) = self.shared.first_key_value()?;
        let into = (!used).trailing_zeros();
        let space = ((!used & self.all()) >> into).trailing_ones();
        let got = space.min(count);
        self.set_used(cluster, used | bits(into, got));
        Some((cluster * self.per_cluster + into, got))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_with_space_are_found() {
        assert_eq!(space_in(0, 64), Some(0));
        assert_eq!(space_in(1, 64), None);
        assert_eq!(space_in(1, 63), Some(1));
        assert_eq!(space_in(u64::MAX, 1), None);
        for (used, count) in [(0b1001_u64, 3_u32), (0xff0f_00ff, 9), (!(1 << 63), 1), (0x5555, 2)] {
            let naive = (0..=64 - count).find(|at| used & bits(*at, count) == 0);
            assert_eq!(space_in(used, count), naive, "{used:x} {count}");
        }
    }

    /// Every unit is allocated once, and only free ones.
    #[test]
    fn all_of_it_is_given_once_and_comes_back() {
        for per in [1, 4, 64] {
            let mut units = Units::new(10, per);
            let mut owner = vec![false; 10 * per as usize];
            let (mut held, mut state) = (Vec::new(), 7_u64);
            for step in 0..5000 {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695);
                let count = 1 + (state >> 40) as u32 % (per * 4);
                let count = if count > per { count / per * per } else { count };
                let free = owner.iter().filter(|&&used| !used).count() as u64;
                assert_eq!(units.free(), free, "step {step}");
                let is_full = free < u64::from(count);
                if is_full || state >> 33 & 1 == 0 {
                    if held.is_empty() {
                        continue;
                    }
                    let (first, count): (u32, u32) = held.swap_remove((state >> 20) as usize % held.len());
                    // In two halves, one of which may be empty.
                    let half = count / 2;
                    units.give(first, half);
                    units.give(first + half, count - half);
                    owner[first as usize..(first + count) as usize].fill(false);
                    continue;
                }
                let goal = held.last().map(|&(first, count)| first + count);
                let taken = units.take(goal, count);
                assert_eq!(taken.iter().map(|piece| piece.1).sum::<u32>(), count);
                for (first, count) in taken {
                    for used in &mut owner[first as usize..(first + count) as usize] {
                        assert!(!std::mem::replace(used, true), "step {step}");
                    }
                    held.push((first, count));
                }
            }
            // The same from what metadata names.
            let mut again = Units::new(10, per);
            for &(first, count) in &held {
                assert!(again.claim(first, count));
            }
            assert_eq!(
                (again.free(), again.free_clusters()),
                (units.free(), units.free_clusters())
            );
            if let Some(&(first, count)) = held.first() {
                assert!(!again.claim(first, count), "twice");
            }
            assert!(!again.claim(10 * per - 1, 2), "what does not exist");
        }
    }

    #[test]
    fn small_pieces_share_clusters_and_whole_ones_do_not() {
        let mut units = Units::new(10, 64);
        let small: Vec<_> = (0..9).map(|_| units.take(None, 7)[0]).collect();
        assert!(small.iter().all(|&(first, _)| first < 64), "{small:?}");
        assert_eq!(units.take(None, 128), [(64, 128)]);
        assert_eq!(units.take(Some(63), 1), [(63, 1)], "behind the goal");
        assert_eq!(units.free_clusters(), 7);
        // Nothing but parts is left: then parts are allocated.
        units.take(None, 7 * 64);
        units.give(0, 7);
        units.give(14, 7);
        assert_eq!(units.take(None, 14), [(0, 7), (14, 7)]);
        assert_eq!(units.free(), 0);
    }

    #[test]
    fn slots_are_put_where_most_is_free() {
        let mut units = Units::new(20, 64);
        let clusters = |first: u32, count: u32| (first * 64, count * 64);
        let (first, count) = clusters(0, 20);
        units.claim(first, count);
        for (first, count) in [clusters(2, 2), clusters(5, 4), clusters(10, 3)] {
            units.give(first, count);
        }
        assert_eq!(
            units.take_for_slots(0, 2 * 64, false),
            Some(clusters(5, 2)),
            "the longest"
        );
        assert_eq!(
            units.take_for_slots(7 * 64, 2 * 64, false),
            Some(clusters(7, 2)),
            "behind"
        );
        assert_eq!(
            units.take_for_slots(9 * 64, 9 * 64, false),
            Some(clusters(10, 3)),
            "what there is"
        );
        assert_eq!(units.take_for_slots(13 * 64, 64, true), None, "nowhere else");
        assert_eq!(units.take_for_slots(2 * 64, 9 * 64, true), Some(clusters(2, 2)));
        // Parts of clusters, when there is nothing else.
        units.give(3, 5);
        units.give(70, 9);
        units.give(90, 2);
        units.give(19 * 64 + 60, 4);
        assert_eq!(units.take_for_slots(13 * 64, 64, false), Some((70, 9)));
        assert_eq!(
            units.take_for_slots(3, 4, false),
            Some((3, 4)),
            "behind, and not more than wanted"
        );
        assert_eq!(
            units.take_for_slots(20 * 64 - 2, 64, true),
            Some((20 * 64 - 2, 2)),
            "up to the end"
        );
        assert_eq!(units.free(), 5);
    }
}
