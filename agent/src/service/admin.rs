//! The `Admin` service: topics, partitions, the cluster.

use std::{sync::Arc, time::Duration};

use esker_proto::{
    types::{Offset, PartitionId},
    v1::{
        self, AgentDescription, AlterTopicRequest, AlterTopicResponse, CreateTopicRequest,
        CreateTopicResponse, DeleteTopicRequest, DeleteTopicResponse, DescribeClusterRequest,
        DescribeClusterResponse, DescribeTopicRequest, DescribeTopicResponse, ErrorKind,
        ListTopicsRequest, ListTopicsResponse, PartitionDescription, SealTopicRequest,
        SealTopicResponse, TopicSummary, TrimPartitionRequest, TrimPartitionResponse,
        admin_server::Admin,
    },
};
use futures::{
    FutureExt,
    future::{BoxFuture, try_join_all},
};
use tonic::{Request, Response, Status};

use super::{
    REASONS_BYTES_MAX, parse_name,
    status::{control_status, partition_status, refusal, shortened, status},
    turns::Turns,
};
use crate::{
    control::{ControlError, TopicConfig},
    partition::{PartitionError, PartitionHandle, PartitionSettings, TimestampKind},
    registry::Topic,
    shared::Shared,
};

const SEAL_TIMEOUT_DEFAULT: Duration = Duration::from_secs(120);

/// Settings that one change gives back to the default: more than there are. The names wait for their turn.
const RESETS_MAX: usize = 64;

/// Serves operators.
#[derive(Debug)]
pub(super) struct AdminService {
    shared: Arc<Shared>,
    turns: Turns,
}

impl AdminService {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            turns: Turns::default(),
        }
    }

    fn topic(&self, name: &str) -> Result<Arc<Topic>, Status> {
        self.shared.topic(name).map_err(|detail| status(&detail))
    }

    /// Makes a change to its end, also if the client goes away meanwhile: half of one would be a
    /// record without partitions, or the other way round.
    async fn to_the_end<T: Send + 'static>(
        &self,
        change: BoxFuture<'static, Result<T, ControlError>>,
    ) -> Result<T, Status> {
        let tasks = &self.shared.tasks;
        let made = self.turns.run(tasks, "change of metadata", change).await;
        let made = made.map_err(|_| Status::internal("the change of metadata was cut off"))?;
        made.map_err(|error| control_status(&error))
    }

    /// Makes a change to its end, even if whoever asked for it goes away: half of one would be a
    /// topic that the metadata has and nobody serves.
    async fn change<T, F>(&self, make: impl FnOnce(Arc<Shared>) -> F) -> Result<T, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, ControlError>> + Send + 'static,
    {
        let change = make(Arc::clone(&self.shared)).boxed();
        let tasks = &self.shared.tasks;
        let made = self.turns.run(tasks, "change topics", change).await;
        made.map_err(|_| status(&super::produce::abandoned()))?
            .map_err(|error| control_status(&error))
    }

    fn summary(&self, topic: &Topic) -> TopicSummary {
        let config = self
            .shared
            .controller
            .state()
            .topics
            .get(&topic.topic_id)
            .map_or_else(TopicConfig::default, |state| state.config.clone());
        let settings = PartitionSettings::resolve(&self.shared.settings, &config);
        TopicSummary {
            name: topic.name.to_string(),
            topic_id: topic.topic_id.to_string(),
            partitions: topic.partition_count(),
            settings: Some(wire_settings(&settings)),
        }
    }

    /// Describes a partition, with so many bytes of the reason why it is offline.
    fn describe(&self, partition: &PartitionHandle, reason_bytes: usize) -> PartitionDescription {
        let view = partition.view();
        let manifest = partition.manifest();
        PartitionDescription {
            partition: partition.topic_partition().partition.get(),
            leader: self.shared.controller.address().to_owned(),
            leader_epoch: partition.leader_epoch().get(),
            log_start_offset: manifest.log_start_offset().get(),
            local_log_start_offset: view.local_log_start_offset.get(),
            tiered_offset: manifest.tiered_offset().get(),
            high_watermark: view.high_watermark.get(),
            log_end_offset: view.log_end_offset.get(),
            local_bytes: view.local_bytes,
            bucket_bytes: manifest.bucket_bytes(),
            bucket_segments: manifest.segment_count(),
            unuploaded_bytes: view.unuploaded_bytes,
            offline_reason: view.offline.map_or_else(String::new, |reason| {
                shortened(reason.to_string(), reason_bytes)
            }),
        }
    }
}

#[tonic::async_trait]
impl Admin for AdminService {
    async fn create_topic(
        &self,
        request: Request<CreateTopicRequest>,
    ) -> Result<Response<CreateTopicResponse>, Status> {
        let request = request.into_inner();
        let name = parse_name(&request.name).map_err(|detail| status(&detail))?;
        let config = config_of(&request.settings.unwrap_or_default())?;
        let partitions = request.partitions;
        let topic = self
            .change(|shared| async move { shared.topics.create(name, partitions, config).await })
            .await?;
        Ok(Response::new(CreateTopicResponse {
            topic: Some(self.summary(&topic)),
        }))
    }

    async fn delete_topic(
        &self,
        request: Request<DeleteTopicRequest>,
    ) -> Result<Response<DeleteTopicResponse>, Status> {
        let topic = self.topic(&request.into_inner().name)?;
        let shared = Arc::clone(&self.shared);
        self.to_the_end(async move { shared.topics.delete(&topic).await }.boxed())
            .await?;
        Ok(Response::new(DeleteTopicResponse {}))
    }

    async fn alter_topic(
        &self,
        request: Request<AlterTopicRequest>,
    ) -> Result<Response<AlterTopicResponse>, Status> {
        let request = request.into_inner();
        let topic = self.topic(&request.name)?;
        if request.reset.len() > RESETS_MAX {
            let text = format!("more settings to reset than there are. most=`{RESETS_MAX}`");
            return Err(status(&refusal(ErrorKind::InvalidArgument, text)));
        }
        let change = config_of(&request.settings.unwrap_or_default())?;
        let (shared, altered) = (Arc::clone(&self.shared), Arc::clone(&topic));
        let AlterTopicRequest {
            partitions, reset, ..
        } = request;
        let alter = async move {
            shared
                .topics
                .alter(&altered, partitions, change, &reset)
                .await
        };
        self.to_the_end(alter.boxed()).await?;
        Ok(Response::new(AlterTopicResponse {
            topic: Some(self.summary(&topic)),
        }))
    }

    async fn list_topics(
        &self,
        _request: Request<ListTopicsRequest>,
    ) -> Result<Response<ListTopicsResponse>, Status> {
        let mut topics = Vec::new();
        for topic in self.shared.registry.topics() {
            // Thousands of them must not keep other tasks waiting.
            tokio::task::consume_budget().await;
            topics.push(self.summary(&topic));
        }
        Ok(Response::new(ListTopicsResponse { topics }))
    }

    async fn describe_topic(
        &self,
        request: Request<DescribeTopicRequest>,
    ) -> Result<Response<DescribeTopicResponse>, Status> {
        let topic = self.topic(&request.into_inner().name)?;
        let served = topic.partitions();
        let reason_bytes = REASONS_BYTES_MAX / served.len().max(1);
        let mut partitions = Vec::new();
        for partition in &served {
            tokio::task::consume_budget().await;
            partitions.push(self.describe(partition, reason_bytes));
        }
        Ok(Response::new(DescribeTopicResponse {
            topic: Some(self.summary(&topic)),
            partitions,
        }))
    }

    async fn trim_partition(
        &self,
        request: Request<TrimPartitionRequest>,
    ) -> Result<Response<TrimPartitionResponse>, Status> {
        let request = request.into_inner();
        let topic = self.topic(&request.topic)?;
        let Some(partition) = topic.partition(PartitionId::new(request.partition)) else {
            let text = format!("no such partition. partition=`{}`", request.partition);
            return Err(status(&refusal(ErrorKind::UnknownPartition, text)));
        };
        let trimmed = partition.trim_below(Offset::new(request.offset)).await;
        let log_start_offset = trimmed.map_err(|error| partition_status(&error))?.get();
        Ok(Response::new(TrimPartitionResponse { log_start_offset }))
    }

    async fn seal_topic(
        &self,
        request: Request<SealTopicRequest>,
    ) -> Result<Response<SealTopicResponse>, Status> {
        let request = request.into_inner();
        let partitions = self.topic(&request.name)?.partitions();
        let sealed = partitions
            .iter()
            .map(|partition| partition.seal(request.drop_local));
        let wait = match request.timeout_ms {
            0 => SEAL_TIMEOUT_DEFAULT,
            millis => Duration::from_millis(millis.into()),
        };
        tokio::time::timeout(wait, try_join_all(sealed))
            .await
            .unwrap_or(Err(PartitionError::TimedOut(
                "the upload of the sealed segments",
            )))
            .map_err(|error| partition_status(&error))?;
        Ok(Response::new(SealTopicResponse {}))
    }

    async fn describe_cluster(
        &self,
        _request: Request<DescribeClusterRequest>,
    ) -> Result<Response<DescribeClusterResponse>, Status> {
        let state = self.shared.controller.state();
        let agents = state.agents.iter().filter(|(_, agent)| !agent.is_drained);
        let agents = agents.map(|(agent_id, agent)| AgentDescription {
            agent_id: agent_id.to_string(),
            address: agent.address.clone(),
            version: agent.version.clone(),
            zone: agent.zone.clone(),
            is_controller: state.controller == Some(*agent_id),
        });
        Ok(Response::new(DescribeClusterResponse {
            cluster_id: self.shared.controller.cluster_id().to_string(),
            agents: agents.collect(),
            store: self.shared.store.name().to_owned(),
        }))
    }
}

fn config_of(settings: &v1::TopicSettings) -> Result<TopicConfig, Status> {
    let timestamps = match settings.timestamps.map(v1::TimestampKind::try_from) {
        None | Some(Ok(v1::TimestampKind::Unspecified)) => None,
        Some(Ok(v1::TimestampKind::Create)) => Some(TimestampKind::Create),
        Some(Ok(v1::TimestampKind::Append)) => Some(TimestampKind::Append),
        Some(Err(_)) => {
            let text = "unknown kind of timestamps";
            return Err(status(&refusal(ErrorKind::InvalidArgument, text)));
        }
    };
    Ok(TopicConfig {
        retention_ms: settings.retention_ms,
        retention_bytes: settings.retention_bytes,
        local_retention_bytes: settings.local_retention_bytes,
        segment_bytes: settings.segment_bytes,
        segment_ms: settings.segment_ms,
        batch_bytes_max: settings.batch_bytes_max,
        timestamps,
        timestamp_before_max_ms: settings.timestamp_before_max_ms,
        timestamp_after_max_ms: settings.timestamp_after_max_ms,
        check_compressed: settings.check_compressed,
    })
}

fn wire_settings(settings: &PartitionSettings) -> v1::TopicSettings {
    let limit = |limit: Option<u64>| limit.map_or(-1, |l| i64::try_from(l).unwrap_or(i64::MAX));
    v1::TopicSettings {
        retention_ms: Some(limit(settings.retention.age_ms)),
        retention_bytes: Some(limit(settings.retention.size_bytes)),
        local_retention_bytes: Some(settings.local_retention_bytes),
        segment_bytes: Some(settings.segment_bytes),
        segment_ms: u64::try_from(settings.segment_age.as_millis()).ok(),
        batch_bytes_max: Some(settings.batch_bytes_max),
        timestamps: Some(match settings.timestamps.kind {
            TimestampKind::Create => v1::TimestampKind::Create.into(),
            TimestampKind::Append => v1::TimestampKind::Append.into(),
        }),
        timestamp_before_max_ms: Some(limit(settings.timestamps.before_max_ms)),
        timestamp_after_max_ms: Some(limit(settings.timestamps.after_max_ms)),
        check_compressed: Some(settings.is_compressed_checked),
    }
}
