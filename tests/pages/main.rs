//! The page store and the VFS against a byte-for-byte oracle.
