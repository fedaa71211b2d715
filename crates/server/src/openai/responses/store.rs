//! The responses that are remembered: the latest used, as many as fit into bounds.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;

/// Most responses that are remembered.
const RESPONSES_MAX: usize = 1024;
/// Most bytes that they take together, roughly.
const BYTES_MAX: usize = 64 << 20;

/// A response that is remembered.
#[derive(Debug, PartialEq)]
pub(super) struct Stored {
    /// Whose it is. Others do not see it.
    pub(super) owner: Arc<str>,
    /// As the client got it.
    pub(super) response: Value,
    /// The conversation that a next request goes on with, in the form of chat templates: the answer is its end.
    pub(super) conversation: Vec<Value>,
}

/// The responses of one server.
pub(crate) struct Responses {
    kept: Mutex<Kept>,
}

struct Kept {
    entries: HashMap<String, Entry>,
    /// Of all entries together.
    bytes: usize,
    bytes_max: usize,
    /// Counts uses, so that entries can tell which was used last.
    uses: u64,
}

struct Entry {
    stored: Arc<Stored>,
    bytes: usize,
    used: u64,
}

impl Default for Responses {
    fn default() -> Self {
        Self::with_room_for(BYTES_MAX)
    }
}

impl Responses {
    fn with_room_for(bytes_max: usize) -> Self {
        Self { kept: Mutex::new(Kept { entries: HashMap::new(), bytes: 0, bytes_max, uses: 0 }) }
    }

    /// Remembers a response under the name `id`; those that were not used for longest make room.
    pub(super) fn put(&self, id: String, stored: Stored) {
        let bytes: usize = stored.conversation.iter().chain([&stored.response]).map(size).sum();
        let mut kept = self.lock();
        if bytes > kept.bytes_max {
            return;
        }
        while kept.entries.len() >= RESPONSES_MAX || kept.bytes + bytes > kept.bytes_max {
            let oldest = kept.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(id, _)| id.clone());
            let Some(oldest) = oldest else { break };
            kept.remove(&oldest);
        }
        let used = kept.next_use();
        kept.bytes += bytes;
        kept.entries.insert(id, Entry { stored: Arc::new(stored), bytes, used });
    }

    /// The response `id` of `owner`, if it is still remembered.
    pub(super) fn get(&self, id: &str, owner: &str) -> Option<Arc<Stored>> {
        let mut kept = self.lock();
        let used = kept.next_use();
        let entry = kept.entries.get_mut(id).filter(|entry| *entry.stored.owner == *owner)?;
        entry.used = used;
        Some(Arc::clone(&entry.stored))
    }

    /// Forgets the response `id` of `owner`, and says whether it was remembered.
    pub(super) fn remove(&self, id: &str, owner: &str) -> bool {
        let mut kept = self.lock();
        let theirs = kept.entries.get(id).is_some_and(|entry| *entry.stored.owner == *owner);
        theirs && kept.remove(id)
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // Nothing that is done under the lock can leave it half done.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn next_use(&mut self) -> u64 {
        self.uses += 1;
        self.uses
    }

    fn remove(&mut self, id: &str) -> bool {
        let Some(entry) = self.entries.remove(id) else { return false };
        self.bytes -= entry.bytes;
        true
    }
}

/// Roughly the bytes that a value takes in memory. Values nest no deeper than the parser of bodies allows.
fn size(value: &Value) -> usize {
    let inside: usize = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size).sum(),
        Value::Object(entries) => entries.iter().map(|(name, value)| name.len() + size(value)).sum(),
        _ => 0,
    };
    size_of::<Value>() + inside
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stored(bytes: usize) -> Stored {
        Stored { owner: "me".into(), response: Value::Null, conversation: vec![Value::from("x".repeat(bytes))] }
    }

    #[test]
    fn what_was_not_used_for_longest_makes_room() {
        let overhead = 2 * size_of::<Value>();
        let responses = Responses::with_room_for(3 * (100 + overhead));
        for id in ["a", "b", "c"] {
            responses.put(id.to_owned(), stored(100));
        }
        assert!(responses.get("a", "me").is_some());
        responses.put("d".to_owned(), stored(100));
        let present = ["a", "b", "c", "d"].map(|id| responses.get(id, "me").is_some());
        assert_eq!(present, [true, false, true, true]);
        // What needs all the room gets it, and what does not fit at all changes nothing.
        responses.put("e".to_owned(), stored(300 + 2 * overhead));
        responses.put("f".to_owned(), stored(1000 + 2 * overhead));
        assert_eq!(["a", "d", "e", "f"].map(|id| responses.get(id, "me").is_some()), [false, false, true, false]);
        assert!(!responses.remove("e", "you") && responses.remove("e", "me") && !responses.remove("e", "me"));
        assert_eq!(responses.lock().bytes, 0);
    }

    #[test]
    fn their_number_is_bounded() {
        let responses = Responses::default();
        for id in 0..=RESPONSES_MAX {
            responses.put(id.to_string(), stored(1));
        }
        assert_eq!(responses.lock().entries.len(), RESPONSES_MAX);
        assert!(responses.get("0", "me").is_none() && responses.get("1", "me").is_some());
    }
}
