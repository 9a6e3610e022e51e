//! `esker-agent health`: asks the agent on this machine how it is, for containers and scripts.

use std::{
    io,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    process::ExitCode,
    time::Duration,
};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use crate::config::Settings;

/// An agent that is alive answers within this time.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(3);
/// More than any answer.
const ANSWER_BYTES_MAX: u64 = 4 << 10;

/// Prints how far the agent has come. Fails unless it is alive, or ready if that is asked.
pub(super) async fn run(settings: Settings, is_ready_asked: bool) -> ExitCode {
    let address = reachable(settings.http_listen);
    let path = if is_ready_asked {
        "/readyz"
    } else {
        "/healthz"
    };
    let answer = match timeout(ANSWER_TIMEOUT, ask(address, path)).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => return unwell(&format!("no answer from {address}: {error}")),
        Err(_) => return unwell(&format!("no answer from {address} in time")),
    };
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
    let is_ok = head.split(' ').nth(1) == Some("200");
    match is_ok {
        true => {
            print!("{body}");
            ExitCode::SUCCESS
        }
        false => unwell(body.trim_end()),
    }
}

fn unwell(why: &str) -> ExitCode {
    eprintln!("esker-agent: {why}");
    ExitCode::FAILURE
}

/// Where to reach a socket that listens on `listen`: on every address means also on loopback.
const fn reachable(listen: SocketAddr) -> SocketAddr {
    let mut address = listen;
    match listen {
        SocketAddr::V4(v4) if v4.ip().is_unspecified() => {
            address.set_ip(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST));
        }
        SocketAddr::V6(v6) if v6.ip().is_unspecified() => {
            address.set_ip(std::net::IpAddr::V6(Ipv6Addr::LOCALHOST));
        }
        _ => {}
    }
    address
}

async fn ask(address: SocketAddr, path: &str) -> io::Result<String> {
    let mut socket = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    socket.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    let mut limited = socket.take(ANSWER_BYTES_MAX);
    limited.read_to_string(&mut answer).await?;
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_agent_that_listens_everywhere_is_asked_on_loopback() {
        for (listen, asked) in [
            ("0.0.0.0:7772", "127.0.0.1:7772"),
            ("[::]:7772", "[::1]:7772"),
            ("10.0.0.7:80", "10.0.0.7:80"),
        ] {
            assert_eq!(reachable(listen.parse().unwrap()), asked.parse().unwrap());
        }
    }
}
