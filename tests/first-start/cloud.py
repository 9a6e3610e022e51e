"""Stands for what an instance finds around it on AWS: cloud.py DIR S3_HOST:S3_PORT

- 169.254.169.254:80, the metadata service, by IMDSv2 only: its values are the files in DIR/latest,
  so whoever writes one there, such as a spot notice, tells the instance so.
- 127.0.0.2:443, S3: TLS ends here, the rest is passed on.
- 127.0.0.3:443, Auto Scaling: prints what it is told and agrees.

DIR has cloud.pem, the certificate for the latter two with its key.
"""

import asyncio
import http.server
import pathlib
import secrets
import socket
import ssl
import sys
import threading
import urllib.parse

DIR = pathlib.Path(sys.argv[1])
S3 = sys.argv[2].rsplit(":", 1)
TTL_HEADER = "X-aws-ec2-metadata-token-ttl-seconds"
TOKEN_HEADER = "X-aws-ec2-metadata-token"
COMPLETED = """<CompleteLifecycleActionResponse xmlns="http://autoscaling.amazonaws.com/doc/2011-01-01/">
<CompleteLifecycleActionResult/><ResponseMetadata><RequestId>1</RequestId></ResponseMetadata>
</CompleteLifecycleActionResponse>"""


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, code, body=b"", headers=()):
        self.send_response(code)
        self.send_header("Content-Length", str(len(body)))
        for name, value in headers:
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Metadata(Handler):
    tokens = set()

    def do_PUT(self):
        ttl = self.headers.get(TTL_HEADER, "")
        if self.path != "/latest/api/token":
            return self.answer(404)
        if not ttl.isdigit() or not 1 <= int(ttl) <= 21600:
            return self.answer(400)
        token = secrets.token_urlsafe(24)
        self.tokens.add(token)
        return self.answer(200, token.encode(), [(TTL_HEADER, ttl)])

    def do_GET(self):
        if self.headers.get(TOKEN_HEADER) not in self.tokens:
            return self.answer(401)
        path = DIR / "latest" / self.path.removeprefix("/latest/").strip("/")
        if path.is_dir():
            names = sorted(one.name + "/" * one.is_dir() for one in path.iterdir())
            return self.answer(200, "\n".join(names).encode())
        return self.answer(200, path.read_bytes()) if path.is_file() else self.answer(404)


class AutoScaling(Handler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        told = {name: value for name, value in urllib.parse.parse_qsl(body) if name != "Version"}
        print("autoscaling:", *(f"{name}={told[name]}" for name in sorted(told)), flush=True)
        is_known = told.get("Action") == "CompleteLifecycleAction"
        self.answer(200 if is_known else 400, COMPLETED.encode(), [("Content-Type", "text/xml")])


def serve(address, handler, tls=None):
    server = http.server.ThreadingHTTPServer(address, handler)
    if tls:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()


async def pass_on(reader, writer):
    try:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    except OSError:
        pass
    finally:
        writer.close()


async def to_s3(reader, writer):
    try:
        s3_reader, s3_writer = await asyncio.open_connection(*S3)
    except OSError as error:
        print("s3:", error, flush=True)
        return writer.close()
    await asyncio.gather(pass_on(reader, s3_writer), pass_on(s3_reader, writer))


async def main():
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(DIR / "cloud.pem")
    serve(("169.254.169.254", 80), Metadata)
    serve(("127.0.0.3", 443), AutoScaling, tls)
    server = await asyncio.start_server(to_s3, "127.0.0.2", 443, ssl=tls, family=socket.AF_INET)
    print("ready", flush=True)
    await server.serve_forever()


asyncio.run(main())
