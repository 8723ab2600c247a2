//! The order in which clients choose the node whose queue they stand in (W2).
//!
//! All clients of a resource have to agree without talking to each other. So each node has a score
//! for each key, from the name of its process alone (rendezvous hashing: Thaler and Ravishankar,
//! "A Name-Based Mapping Scheme for Rendezvous", 1996). If one node is left out, the others keep
//! their order.

/// The node with the greatest score is the gate.
pub(in crate::proto) fn score(name: &[u8], key: &[u8]) -> u64 {
    mixed(name.iter().chain(&[0]).chain(key).fold(FNV_OFFSET, |hash, byte| {
        // FNV-1a, 64 bits (RFC 9923).
        (hash ^ u64::from(*byte)).wrapping_mul(FNV_PRIME)
    }))
}

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0000_0100_0000_01b3;

/// The finaliser of MurmurHash3: the upper bits of FNV depend too little on the last bytes.
fn mixed(mut hash: u64) -> u64 {
    for factor in [0xff51_afd7_ed55_8ccd, 0xc4ce_b9fe_1a85_ec53] {
        hash ^= hash >> 33;
        hash = hash.wrapping_mul(factor);
    }
    hash ^ (hash >> 33)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// W2. Other versions of this crate must compute the same.
    #[test]
    fn scores_are_those_of_the_rule() {
        let table = [
            ("invoice:42", 0x991f_20b2_acff_7cf3, 0x9609_12ef_6803_9a8c),
            ("k", 0x1ff2_e0a1_35d4_bcfc, 0xc6c4_ed14_332b_a373),
        ];
        for (key, first, second) in table {
            let scores = [b'a', b'b'].map(|name| score(&[name; 40], key.as_bytes()));
            assert_eq!(scores, [first, second], "{key}");
        }
    }

    #[test]
    fn each_node_is_the_gate_of_its_share_of_keys() {
        let names = [b'a', b'b', b'c'].map(|name| [name; 40]);
        let mut gates = [0; 3];
        for key in 0..3_000 {
            let key = format!("invoice:{key}");
            let best = (0..3).max_by_key(|node| score(&names[*node], key.as_bytes()));
            gates[best.unwrap()] += 1;
        }
        assert!(gates.iter().all(|keys| (900..1_100).contains(keys)), "{gates:?}");
    }
}
