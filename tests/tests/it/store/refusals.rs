//! Stores that cannot be used are refused, in one clear line and in time.
