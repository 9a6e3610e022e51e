//! The gRPC services: thin. They decode, ask a partition or the controller, and encode.

mod admin;
mod append;
mod check;
mod encode;
mod fetch;
mod intake;
mod list_offsets;
mod log;
mod plain;
mod produce;
mod status;
mod turns;
mod uncopied;
mod undecoded;

use std::sync::Arc;

use axum::{
    extract::Request,
    middleware::{Next, from_fn},
    response::Response,
};
use esker_proto::{
    DESCRIPTOR_SET,
    types::{PartitionId, TopicId, TopicName},
    v1::{ErrorDetail, ErrorKind, admin_server::AdminServer, log_server::LogServer},
};
use tonic::service::Routes;
use tonic_health::pb::health_server::{Health, HealthServer};

use crate::{partition::PartitionHandle, registry::Topic, shared::Shared};
pub(crate) use check::CHECK_BYTES_MAX;
pub(crate) use intake::REQUESTS_BYTES_MAX;
use intake::{Bounded, REQUEST_BYTES_MAX, Remade, is_of_producer};
pub(crate) use produce::{abandoned, detail as produce_detail};
use status::refusal;
use uncopied::Uncopied;
use undecoded::Undecoded;

/// Largest gRPC message sent.
const MESSAGE_BYTES_MAX: usize = 64 << 20;
/// What the reasons of a topic's offline partitions take in an answer: clients take 4 MiB in all, unless
/// they are set to take more.
const REASONS_BYTES_MAX: usize = 1 << 20;
/// What a request holds besides its batch.
const ENVELOPE_BYTES: u32 = 64 << 10;
/// Messages of this size are received in any case, so that their errors are typed.
const MESSAGE_BYTES_MIN: u32 = 4 << 20;

/// Builds every service of the agent.
///
/// # Errors
///
/// If the descriptors that were compiled in cannot be read.
pub(crate) fn routes<H: Health>(
    shared: &Arc<Shared>,
    health: HealthServer<H>,
) -> Result<Routes, tonic_reflection::server::Error> {
    let service = Arc::new(log::LogService::new(Arc::clone(shared)));
    let limits = Arc::clone(shared);
    let small = REQUEST_BYTES_MAX as usize;
    let make = move |is_of_producer| {
        let most = match is_of_producer {
            true => usize::try_from(limits.message_bytes_max()).unwrap_or(usize::MAX),
            false => small,
        };
        LogServer::from_arc(Arc::clone(&service))
            .max_decoding_message_size(most)
            .max_encoding_message_size(MESSAGE_BYTES_MAX)
    };
    let admin = AdminServer::new(admin::AdminService::new(Arc::clone(shared)));
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(DESCRIPTOR_SET)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
        .build_v1()?;
    let log = Undecoded {
        service: Uncopied(Remade(make)),
        shared: Arc::clone(shared),
    };
    let routes = Routes::new(bounded(shared, log))
        .add_service(bounded(shared, admin.max_decoding_message_size(small)))
        .add_service(bounded(shared, reflection.max_decoding_message_size(small)))
        .add_service(bounded(shared, health.max_decoding_message_size(small)));
    let router = routes.into_axum_router();
    Ok(Routes::from(router.layer(from_fn(explain))))
}

fn bounded<S>(shared: &Arc<Shared>, service: S) -> Bounded<S> {
    let shared = Arc::clone(shared);
    Bounded { service, shared }
}

/// Puts into our terms that a request could not be read.
async fn explain(request: Request, next: Next) -> Response {
    let too_large = match is_of_producer(&request) {
        true => ErrorKind::BatchTooLarge,
        false => ErrorKind::InvalidArgument,
    };
    let response = next.run(request).await;
    let status = tonic::Status::from_header_map(response.headers());
    let unreadable = |status| status::unreadable(status, too_large);
    match status.as_ref().and_then(unreadable) {
        Some(status) => status.into_http(),
        None => response,
    }
}

impl Shared {
    /// Returns the largest gRPC message taken: the largest batch of any topic, and its envelope.
    fn message_bytes_max(&self) -> u32 {
        let largest = self.topics.largest_batch_bytes();
        largest
            .saturating_add(ENVELOPE_BYTES)
            .max(MESSAGE_BYTES_MIN)
    }

    /// Finds a topic by the name in a request.
    fn topic(&self, name: &str) -> Result<Arc<Topic>, ErrorDetail> {
        let parsed = parse_name(name)?;
        self.registry.topic(&parsed).ok_or_else(|| {
            if self.controller.state().topic_named(&parsed).is_some() {
                return not_served_yet(format_args!("topic=`{name}`"));
            }
            refusal(
                ErrorKind::UnknownTopic,
                format!("no such topic. topic=`{name}`"),
            )
        })
    }

    /// Finds a topic by name, and refuses one that has another id than the request names.
    fn topic_by_id(&self, name: &str, topic_id: &[u8]) -> Result<Arc<Topic>, ErrorDetail> {
        let found = self.topic(name)?;
        check_topic_id(&found, topic_id)?;
        Ok(found)
    }

    /// Finds a partition by the coordinates in a request.
    fn partition(
        &self,
        topic: &str,
        topic_id: &[u8],
        partition: u32,
    ) -> Result<PartitionHandle, ErrorDetail> {
        let found = self.topic_by_id(topic, topic_id)?;
        self.partition_of(&found, partition)
    }

    /// Finds a partition of a topic.
    fn partition_of(&self, topic: &Topic, partition: u32) -> Result<PartitionHandle, ErrorDetail> {
        let (name, count) = (&topic.name, topic.partition_count());
        topic.partition(PartitionId::new(partition)).ok_or_else(|| {
            let state = self.controller.state();
            let known = state.topics.get(&topic.topic_id);
            if known.is_some_and(|known| known.partitions.len() > partition as usize) {
                let place = format_args!("topic=`{name}`, partition=`{partition}`");
                return not_served_yet(place);
            }
            let text = format!(
                "no such partition. topic=`{name}`, partition=`{partition}`, partitions=`{count}`"
            );
            refusal(ErrorKind::UnknownPartition, text)
        })
    }
}

/// Says of what the metadata has, but this agent could not open so far, that it may be worth a wait.
fn not_served_yet(place: std::fmt::Arguments<'_>) -> ErrorDetail {
    let text = format!("this agent does not serve it yet, retry later. {place}");
    refusal(ErrorKind::NotLeader, text)
}

/// Compares a topic's id with the one in a request; an empty one fits every topic.
fn check_topic_id(topic: &Topic, topic_id: &[u8]) -> Result<(), ErrorDetail> {
    let (name, found) = (&topic.name, topic.topic_id);
    if topic_id.is_empty() || topic_id == found.get().as_bytes() {
        return Ok(());
    }
    let Ok(wanted) = topic_id.try_into().map(TopicId::from_bytes) else {
        let text = format!("topic_id is not 16 bytes long. bytes=`{}`", topic_id.len());
        return Err(refusal(ErrorKind::InvalidArgument, text));
    };
    let text = format!(
        "topic was deleted and created again. topic=`{name}`, topic_id=`{found}`, \
         requested_topic_id=`{wanted}`"
    );
    Err(refusal(ErrorKind::UnknownTopicId, text))
}

fn parse_name(name: &str) -> Result<TopicName, ErrorDetail> {
    name.parse()
        .map_err(|error: esker_proto::types::InvalidTopicName| {
            refusal(ErrorKind::InvalidTopicName, error.to_string())
        })
}
