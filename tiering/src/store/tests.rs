//! What every store does, shown on those that need no server.
