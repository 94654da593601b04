//! A part of the vocabulary that a draft's head covers: the tokens that the large model writes most often.

/// The `count` most frequent tokens of `texts` and all of `always`, ascending. Of tokens that are equally frequent, those
/// with lower ids come first: byte-pair vocabularies begin with the frequent ones.
pub(super) fn choose(texts: &[Vec<u32>], always: &[u32], count: usize, vocab: usize) -> Vec<u32> {
    let mut seen = vec![0usize; vocab];
    for token in texts.iter().flatten() {
        seen[*token as usize] += 1;
    }
    for token in always {
        seen[*token as usize] = usize::MAX;
    }
    let mut order: Vec<u32> = (0..vocab as u32).collect();
    order.sort_by_key(|token| std::cmp::Reverse(seen[*token as usize]));
    order.truncate(count);
    order.sort_unstable();
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frequent_tokens_and_end_tokens_are_kept() {
        let texts = [vec![5, 5, 7], vec![7, 7, 3]];
        assert_eq!(choose(&texts, &[9], 3, 10), [5, 7, 9]);
        assert_eq!(choose(&texts, &[], 5, 10), [0, 1, 3, 5, 7]);
        assert_eq!(choose(&[], &[], 10, 10), (0..10).collect::<Vec<_>>());
    }
}
