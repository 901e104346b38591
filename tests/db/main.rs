//! SQL level: every op, every query, and the indexes they use.
