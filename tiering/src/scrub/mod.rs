//! Compares buckets with their manifests, and repairs what can be repaired.

mod chain_choice;
