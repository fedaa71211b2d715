//! Who of the group still lives, and who is to blame when the group cannot go on.

mod health;

pub(crate) use health::Health;
