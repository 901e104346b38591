//! Every await point cancelled in turn.
