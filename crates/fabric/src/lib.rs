//! Links between ranks, groups, and collectives.
