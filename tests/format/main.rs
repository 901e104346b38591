//! Every byte of what lies in the bucket.
