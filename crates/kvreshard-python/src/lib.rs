//! Python bindings of kvreshard.
