//! Random ops against a plain model of the queue.
