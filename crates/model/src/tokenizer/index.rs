//! From bytes to the token that spells them.

use std::hash::BuildHasher;

use hashbrown::{DefaultHashBuilder, HashTable};

use super::vocabulary::{TokenKind, Vocabulary};

/// Finds normal tokens by their bytes. It holds ids alone; the bytes stay in the vocabulary.
#[derive(Debug, Default)]
pub(super) struct PieceIndex {
    hasher: DefaultHashBuilder,
    ids: HashTable<u32>,
}

impl PieceIndex {
    /// Indexes the normal tokens for which `wanted` holds. Of tokens with the same bytes the first counts.
    pub(super) fn new(vocabulary: &Vocabulary, wanted: impl Fn(u32) -> bool) -> Self {
        let mut index = PieceIndex { hasher: DefaultHashBuilder::default(), ids: HashTable::new() };
        index.ids.reserve(vocabulary.len(), |&id| index.hasher.hash_one(vocabulary.bytes(id)));
        let is_piece =
            |&id: &u32| vocabulary.kind(id) == TokenKind::Normal && !vocabulary.bytes(id).is_empty() && wanted(id);
        for id in vocabulary.ids().filter(is_piece) {
            let bytes = vocabulary.bytes(id);
            let hash = index.hasher.hash_one(bytes);
            let rehash = |&id: &u32| index.hasher.hash_one(vocabulary.bytes(id));
            index.ids.entry(hash, |&other| vocabulary.bytes(other) == bytes, rehash).or_insert(id);
        }
        index
    }

    /// The token that spells `bytes`. The vocabulary is the one that the index was made from.
    pub(super) fn find(&self, vocabulary: &Vocabulary, bytes: &[u8]) -> Option<u32> {
        self.ids.find(self.hasher.hash_one(bytes), |&id| vocabulary.bytes(id) == bytes).copied()
    }
}
