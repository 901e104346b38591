//! The layers, the tables and the docs keep to what they say.
