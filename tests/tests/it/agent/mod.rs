//! Agents end to end: each promise of one agent, kept while something goes wrong.

mod bad_input;
mod crash;
mod damage;
mod descriptors;
mod disk;
mod lost_log;
mod offline;
mod outage;
mod permissions;
mod reads;
mod repair;
mod request_bounds;
mod requests;
mod restart;
mod retention;
mod slow_producers;
mod stalled;
mod start;
mod support;
mod surface;
mod tail_damage;
mod take_over;
mod topics;
