//! Serves an S3 store in memory as a process of its own, for benches and for trying things out.
//!
//! Prints `listening on http://…` once it accepts connections, and the count of requests when it
//! ends: on SIGTERM, SIGINT or when its standard input closes.

use std::{net::SocketAddr, process::ExitCode};

use clap::Parser;
use esker_tests::s3::{ACCESS_KEY, Rule, S3Server, SECRET_KEY};
use tokio::{
    io::AsyncReadExt,
    signal::unix::{SignalKind, signal},
};

/// An S3 server in memory.
#[derive(Debug, Parser)]
#[command(name = "esker-test-s3")]
struct Arguments {
    /// Address to listen on; port 0 takes a free one.
    #[arg(long, default_value = "127.0.0.1:0")]
    listen: SocketAddr,
    /// A bucket to start with; may be repeated.
    #[arg(long = "bucket", default_value = "esker")]
    buckets: Vec<String>,
    /// The access key to accept.
    #[arg(long, default_value = ACCESS_KEY)]
    access_key: String,
    /// The secret key that belongs to it.
    #[arg(long, default_value = SECRET_KEY)]
    secret_key: String,
    /// Ask nobody for a signature.
    #[arg(long)]
    anonymous: bool,
    /// A fault rule, such as `reply-lost,verb=put,contains=/manifest/,p=0.05`; may be repeated.
    #[arg(long = "fault", value_name = "RULE")]
    faults: Vec<Rule>,
    /// Seed of everything drawn at random.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Threads that serve.
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Do not end when standard input closes.
    #[arg(long)]
    ignore_stdin: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("esker-test-s3: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(arguments.threads.max(1))
        .enable_all()
        .build()?;
    let served = runtime.block_on(serve(arguments));
    // A read of standard input cannot be cancelled.
    runtime.shutdown_background();
    served
}

async fn serve(arguments: Arguments) -> anyhow::Result<()> {
    let listen = arguments.listen;
    let ignore_stdin = arguments.ignore_stdin;
    let server = build(arguments)
        .start()
        .await
        .map_err(|error| anyhow::anyhow!("cannot listen: {error}. address=`{listen}`"))?;
    println!("listening on {}", server.url());
    until_told_to_end(ignore_stdin).await?;
    println!("requests: {}", server.counts());
    server.stop().await;
    Ok(())
}

fn build(arguments: Arguments) -> esker_tests::s3::Builder {
    let mut builder = S3Server::builder()
        .listen(arguments.listen)
        .credentials(arguments.access_key, arguments.secret_key)
        .seed(arguments.seed);
    if arguments.anonymous {
        builder = builder.anonymous();
    }
    let builder = arguments
        .buckets
        .into_iter()
        .fold(builder, esker_tests::s3::Builder::bucket);
    arguments
        .faults
        .into_iter()
        .fold(builder, esker_tests::s3::Builder::fault)
}

async fn until_told_to_end(ignore_stdin: bool) -> anyhow::Result<()> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        () = stdin_closed(), if !ignore_stdin => {}
    }
    Ok(())
}

async fn stdin_closed() {
    let mut stdin = tokio::io::stdin();
    let mut ignored = [0; 256];
    while matches!(stdin.read(&mut ignored).await, Ok(read) if read > 0) {}
}
