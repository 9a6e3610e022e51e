//! The `Log` service: one method each, in files of their own.

use std::{pin::Pin, sync::Arc};

use esker_proto::v1::{
    AppendRequest, AppendResponse, FetchRequest, FetchResponse, InitProducerRequest,
    InitProducerResponse, ListOffsetsRequest, ListOffsetsResponse, ProduceRequest, ProduceResponse,
    log_server::Log,
};
use futures::{FutureExt, Stream};
use tonic::{Request, Response, Status, Streaming};

use super::{fetch, intake::Rooms, list_offsets, produce, status, turns::Turns, uncopied};
use crate::shared::Shared;

type Responses<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Serves producers and consumers.
#[derive(Debug)]
pub(super) struct LogService {
    shared: Arc<Shared>,
    turns: Turns,
}

impl LogService {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        Self {
            shared,
            turns: Turns::default(),
        }
    }
}

#[tonic::async_trait]
impl Log for LogService {
    type ProduceStream = Responses<ProduceResponse>;
    type FetchStream = Responses<FetchResponse>;

    async fn produce(
        &self,
        request: Request<Streaming<ProduceRequest>>,
    ) -> Result<Response<Self::ProduceStream>, Status> {
        let rooms = Rooms::of(&request);
        let answers = produce::serve(&self.shared, request.into_inner(), rooms);
        Ok(Response::new(Box::pin(answers)))
    }

    async fn fetch(
        &self,
        request: Request<FetchRequest>,
    ) -> Result<Response<Self::FetchStream>, Status> {
        let peer = request.extensions().get().cloned();
        let pieces = fetch::serve(&self.shared, request.into_inner(), peer)?;
        Ok(uncopied::response(pieces))
    }

    async fn list_offsets(
        &self,
        request: Request<ListOffsetsRequest>,
    ) -> Result<Response<ListOffsetsResponse>, Status> {
        let _room = Rooms::of(&request).take();
        list_offsets::serve(&self.shared, request.into_inner())
            .await
            .map(Response::new)
    }

    async fn init_producer(
        &self,
        _request: Request<InitProducerRequest>,
    ) -> Result<Response<InitProducerResponse>, Status> {
        // In a task of its own: a record is written to its end, also if the client goes away.
        let controller = Arc::clone(&self.shared.controller);
        let ids = async move { controller.next_producer_id().await };
        let ids = self
            .turns
            .run(&self.shared.tasks, "producer id", ids.boxed())
            .await;
        let ids = ids.map_err(|_| Status::internal("the producer id was cut off"))?;
        let producer_id = ids.map_err(|error| status::control_status(&error))?;
        let response = InitProducerResponse {
            producer_id: producer_id.get(),
            producer_epoch: 0,
        };
        Ok(Response::new(response))
    }

    async fn append(
        &self,
        _request: Request<AppendRequest>,
    ) -> Result<Response<AppendResponse>, Status> {
        // `Undecoded` serves it before it comes here.
        Err(Status::internal("a request was decoded too early"))
    }
}
