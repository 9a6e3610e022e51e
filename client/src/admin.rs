//! Topics and the cluster.

use std::time::Duration;

use esker_proto::{
    types::{Offset, PartitionId, TimestampMs, TopicName},
    v1,
};

use crate::{
    Client,
    client::{OffsetQuery, Repeat, admin_client},
    error::{Error, ErrorKind, Result},
};

/// Calls about topics and the cluster. Answers are the messages of `esker.v1`. Cheap to clone.
///
/// A change whose outcome is unknown, as when the connection broke before the answer, is not
/// repeated: its error then says `false` to [`Error::has_no_side_effects`].
#[derive(Clone, Debug)]
pub struct Admin {
    client: Client,
}

impl Admin {
    pub(crate) const fn new(client: Client) -> Self {
        Self { client }
    }

    /// Creates a topic; with 0 partitions it gets as many as the agent's default says.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::AlreadyExists`], or [`ErrorKind::Invalid`] for the name or the settings.
    pub async fn create_topic(
        &self,
        name: &str,
        partitions: u32,
        settings: v1::TopicSettings,
    ) -> Result<v1::TopicSummary> {
        check_name(name)?;
        let settings = Some(settings);
        let request = v1::CreateTopicRequest {
            name: name.to_owned(),
            partitions,
            settings,
        };
        let created = self
            .client
            .admin_call(Repeat::IfUnchanged, |mut agent| {
                let request = request.clone();
                async move { agent.create_topic(request).await }
            })
            .await?;
        created.topic.ok_or_else(no_topic)
    }

    /// Deletes a topic and, in the background, everything it holds.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none of that name.
    pub async fn delete_topic(&self, name: &str) -> Result<()> {
        self.client
            .admin_call(Repeat::IfUnchanged, |mut agent| {
                let request = v1::DeleteTopicRequest {
                    name: name.to_owned(),
                };
                async move { agent.delete_topic(request).await }
            })
            .await?;
        Ok(())
    }

    /// Changes settings or adds partitions. Adding partitions changes where new records of a key
    /// go: order per key holds only among those before, and among those after.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], or [`ErrorKind::Invalid`] for fewer partitions or bad settings.
    pub async fn alter_topic(&self, request: v1::AlterTopicRequest) -> Result<v1::TopicSummary> {
        let altered = self
            .client
            .admin_call(Repeat::IfUnchanged, |mut agent| {
                let request = request.clone();
                async move { agent.alter_topic(request).await }
            })
            .await?;
        altered.topic.ok_or_else(no_topic)
    }

    /// Returns every topic.
    ///
    /// # Errors
    ///
    /// If no agent answers.
    pub async fn list_topics(&self) -> Result<Vec<v1::TopicSummary>> {
        let listed = self
            .client
            .admin_call(Repeat::Always, |mut agent| async move {
                agent.list_topics(v1::ListTopicsRequest {}).await
            })
            .await?;
        Ok(listed.topics)
    }

    /// Returns a topic's settings and the state of its partitions.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is none of that name.
    pub async fn describe_topic(&self, name: &str) -> Result<v1::DescribeTopicResponse> {
        self.client.describe_topic(name).await
    }

    /// Raises a partition's log start offset, at most to its tiered offset; returns where the log
    /// starts then. Records below are gone for good.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`], or [`ErrorKind::OutOfRange`] beyond the tiered offset.
    pub async fn trim_partition(
        &self,
        topic: &str,
        partition: PartitionId,
        below: Offset,
    ) -> Result<Offset> {
        let request = v1::TrimPartitionRequest {
            topic: topic.to_owned(),
            partition: partition.get(),
            offset: below.get(),
        };
        // Trimming twice is trimming once.
        let trimmed = self
            .client
            .admin_call(Repeat::Always, |mut agent| {
                let request = request.clone();
                async move { agent.trim_partition(request).await }
            })
            .await?;
        Ok(Offset::new(trimmed.log_start_offset))
    }

    /// Seals a topic's active segments and waits, at most for `timeout`, until everything in them
    /// is in the bucket; with `drop_local` also drops the local copies of what is.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::TimedOut`] if it took longer: what was sealed is uploaded nevertheless.
    pub async fn seal_topic(&self, name: &str, drop_local: bool, timeout: Duration) -> Result<()> {
        let request = v1::SealTopicRequest {
            name: name.to_owned(),
            drop_local,
            timeout_ms: u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX),
        };
        // The agent is to say first that time ran out.
        let patience = timeout.saturating_add(self.client.config().request_timeout);
        self.client
            .call(Repeat::IfUnchanged, patience, |connection| {
                let (request, mut agent) = (request.clone(), admin_client(connection));
                async move { agent.seal_topic(request).await }
            })
            .await?;
        Ok(())
    }

    /// Returns the cluster's id, agents and store.
    ///
    /// # Errors
    ///
    /// If no agent answers.
    pub async fn describe_cluster(&self) -> Result<v1::DescribeClusterResponse> {
        self.client
            .admin_call(Repeat::Always, |mut agent| async move {
                agent.describe_cluster(v1::DescribeClusterRequest {}).await
            })
            .await
    }

    /// Returns each partition's log start offset, by partition number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such topic.
    pub async fn earliest_offsets(&self, topic: &str) -> Result<Vec<(PartitionId, Offset)>> {
        self.offsets(topic, OffsetQuery::Earliest).await
    }

    /// Returns each partition's high watermark, by partition number.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such topic.
    pub async fn latest_offsets(&self, topic: &str) -> Result<Vec<(PartitionId, Offset)>> {
        self.offsets(topic, OffsetQuery::Latest).await
    }

    /// Returns the offset of each partition's first record at or after a time, by partition number;
    /// partitions without one are left out.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::NotFound`] if there is no such topic.
    pub async fn offsets_at(
        &self,
        topic: &str,
        timestamp: TimestampMs,
    ) -> Result<Vec<(PartitionId, Offset)>> {
        self.offsets(topic, OffsetQuery::At(timestamp)).await
    }

    async fn offsets(&self, topic: &str, query: OffsetQuery) -> Result<Vec<(PartitionId, Offset)>> {
        let found = self.client.list_offsets(topic, None, &[], query).await?;
        let found = found
            .into_iter()
            .filter_map(|(partition, offset)| Some((partition, offset?)));
        let mut offsets: Vec<_> = found.collect();
        offsets.sort_unstable();
        Ok(offsets)
    }
}

/// Refuses here what every agent would refuse.
pub(crate) fn check_name(name: &str) -> Result<()> {
    let parsed: Result<TopicName, _> = name.parse();
    match parsed {
        Ok(_) => Ok(()),
        Err(illegal) => Err(Error::invalid(illegal.to_string()).with_source(illegal)),
    }
}

fn no_topic() -> Error {
    Error::new(ErrorKind::Internal, "agent's answer lacks the topic").with_side_effects(false)
}
