"""Keeps LocalStack's buckets over an orderly restart, which its community edition does not.

LocalStack runs this twice, in its own process: before it listens, to put back what was saved, and
when it is told to stop, to save. The bucket named in ESKER_BUCKET is created where there is none.
"""

import os
import shutil
import sys
import threading
import time
from pathlib import Path

from localstack.aws.connect import connect_to
from localstack.runtime import get_current_runtime

SAVED = Path("/var/lib/localstack/esker")
PART = SAVED.with_suffix(".part")
# There while it runs: what was saved before is old then, and must not come back after a crash.
RUNNING = SAVED.with_suffix(".running")

runtime = get_current_runtime()
# IN_MEMORY_CLIENT=1: calls the server's code without its socket, in this thread.
s3 = connect_to(region_name="us-east-1").s3


def restore():
    if RUNNING.exists():
        sys.exit("was killed, and its buckets with it; start afresh: docker-compose down -v")
    for bucket in {os.environ["ESKER_BUCKET"], *(path.name for path in SAVED.glob("*"))}:
        s3.create_bucket(Bucket=bucket)
        for path in (SAVED / bucket).rglob("*"):
            if path.is_file():
                key = path.relative_to(SAVED / bucket).as_posix()
                s3.put_object(Bucket=bucket, Key=key, Body=path.read_bytes())
    RUNNING.touch()


def save():
    saver = threading.current_thread()

    def refuse_others(chain, _context, _response):
        if threading.current_thread() is not saver:
            chain.respond(503, "stopping")

    # What is acknowledged from here on would be lost: refuse it, and let the rest through.
    runtime.components.gateway.request_handlers.insert(0, refuse_others)
    time.sleep(1)
    shutil.rmtree(PART, ignore_errors=True)
    PART.mkdir(parents=True)
    for bucket in (bucket["Name"] for bucket in s3.list_buckets()["Buckets"]):
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=bucket):
            for key in (found["Key"] for found in page.get("Contents", [])):
                path = PART / bucket / key
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    shutil.rmtree(SAVED, ignore_errors=True)
    PART.rename(SAVED)
    RUNNING.unlink()


def main():
    begin = time.monotonic()
    is_stopping = runtime.stopping.is_set()
    try:
        save() if is_stopping else restore()
    except BaseException as error:
        print(f"esker: {error}", flush=True)
        # LocalStack would go on, with buckets that look empty.
        os._exit(1)
    what = "saved" if is_stopping else "put back"
    print(f"esker: buckets {what} in {time.monotonic() - begin:.1f} s", flush=True)


main()
