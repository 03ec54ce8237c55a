//! [`Step`]: the order in which a rank exchanges control messages with other ranks, until each rank
//! has combined the messages of all ranks.
//!
//! This is recursive doubling. Let `p` be the largest power of two that is not above the number of
//! ranks. For one bit after the other, each rank below `p` exchanges what it has with the rank
//! whose number differs in this bit. When two ranks exchange sums, both add the same two numbers,
//! so all ranks end with the same bits. Each rank at or above `p` first sends its message to a rank
//! below `p`, and in the end receives the result from it. A rank thus exchanges at most
//! `log2(ranks) + 1` messages, with the same few ranks each time.

/// One step of an exchange: this rank sends to another rank, receives from it, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Sends the value of this rank.
    Send(u32),
    /// Receives what the other rank has, and adds it.
    Join(u32),
    /// Sends what this rank has, receives what the other rank has, and adds it.
    Exchange(u32),
    /// Receives the result of the other rank, and replaces what this rank has with it.
    Replace(u32),
}

/// Returns the steps of one rank.
pub(super) fn of_rank(rank: u32, size: u32) -> Vec<Step> {
    let power = 1 << size.ilog2();
    if rank >= power {
        return vec![Step::Send(rank - power), Step::Replace(rank - power)];
    }
    let outside = rank + power;
    let bits = (0..size.ilog2()).map(|bit| Step::Exchange(rank ^ (1 << bit)));
    if outside >= size {
        return bits.collect();
    }
    [Step::Join(outside)].into_iter().chain(bits).chain([Step::Send(outside)]).collect()
}

/// Returns the ranks with which a rank exchanges control messages.
pub(super) fn peers(steps: &[Step]) -> Vec<u32> {
    let mut peers: Vec<u32> = Vec::new();
    for step in steps {
        let (Step::Send(peer) | Step::Join(peer) | Step::Exchange(peer) | Step::Replace(peer)) = *step;
        if !peers.contains(&peer) {
            peers.push(peer);
        }
    }
    peers
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Runs the steps of all ranks, each as soon as the message that it waits for has been sent.
    fn run(size: u32) -> Vec<BTreeSet<u32>> {
        let steps: Vec<Vec<Step>> = (0..size).map(|rank| of_rank(rank, size)).collect();
        let mut held: Vec<BTreeSet<u32>> = (0..size).map(|rank| BTreeSet::from([rank])).collect();
        let mut sent = vec![std::collections::HashMap::new(); size as usize];
        let mut next = vec![0; size as usize];
        let mut has_sent = vec![false; size as usize];
        while let Some(rank) = (0..size as usize).find(|rank| {
            let step = steps[*rank].get(next[*rank]);
            step.is_some_and(|step| match step {
                Step::Send(_) => true,
                Step::Exchange(_) if !has_sent[*rank] => true,
                Step::Exchange(peer) | Step::Join(peer) | Step::Replace(peer) => {
                    sent[*peer as usize].contains_key(&(*rank as u32))
                }
            })
        }) {
            let step = steps[rank][next[rank]];
            let own = rank as u32;
            match step {
                Step::Send(peer) => drop(sent[rank].insert(peer, held[rank].clone())),
                Step::Exchange(peer) if !has_sent[rank] => {
                    sent[rank].insert(peer, held[rank].clone());
                    has_sent[rank] = true;
                    continue;
                }
                Step::Exchange(peer) | Step::Join(peer) | Step::Replace(peer) => {
                    let received = sent[peer as usize].remove(&own).unwrap();
                    let is_new = received.is_disjoint(&held[rank]) || matches!(step, Step::Replace(_));
                    assert!(is_new, "{size} ranks: rank {rank} adds a rank twice");
                    held[rank].extend(received);
                }
            }
            has_sent[rank] = false;
            next[rank] += 1;
        }
        assert!((0..size as usize).all(|rank| next[rank] == steps[rank].len()), "{size} ranks wait forever");
        held
    }

    #[test]
    fn every_rank_has_the_numbers_of_all_ranks_once() {
        for size in 2..70 {
            for (rank, held) in run(size).iter().enumerate() {
                assert_eq!(held.len(), size as usize, "rank {rank} of {size}");
            }
        }
    }

    #[test]
    fn the_number_of_peers_grows_with_the_logarithm_of_the_ranks() {
        for (size, most) in [(2, 1), (3, 2), (4, 2), (48, 6), (64, 6), (512, 9), (4096, 12), (5000, 13)] {
            let peers = (0..size).map(|rank| peers(&of_rank(rank, size)).len()).max();
            assert_eq!(peers, Some(most), "{size} ranks");
        }
    }
}
