//! Placeholder until the mount lands.
