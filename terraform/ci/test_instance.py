"""Runs the scripts of an instance against stand-ins: test_instance.py DIR, as render_user_data.py
writes it. The metadata service is a small server; systemctl, aws and journalctl note what they are
told and answer what the test wants. `setup` is not run: it formats disks and installs packages.
"""

import http.server
import os
import subprocess
import sys
import tempfile
import threading
import time
import unittest

ROOT = os.path.join(sys.argv.pop(), "root") if len(sys.argv) > 1 else "root"
LIB = os.path.join(ROOT, "usr/local/lib/esker")
TOKEN = "a-token"
# Answers from the file `statuses`, one exit status of the agent for each start.
SYSTEMCTL = """#!/bin/sh
echo "systemctl $*" >>"$CALLS"
case "$*" in
  "start esker-agent.service")
    status=$(head -1 "$STATE/statuses"); sed -i 1d "$STATE/statuses"
    echo "${status:-75}" >"$STATE/status"
    [ "${status:-75}" = 0 ] ;;
  "show -p ExecMainStatus --value esker-agent.service") cat "$STATE/status" ;;
  "show -p ActiveState --value esker-agent.service") grep -qx 0 "$STATE/status" && echo active || echo failed ;;
esac
"""
NOTE = '#!/bin/sh\necho "%s $*" >>"$CALLS"\n'


class Metadata(http.server.BaseHTTPRequestHandler):
    values = {}

    def do_PUT(self):
        self.answer(200 if self.path == "/latest/api/token" else 404, TOKEN)

    def do_GET(self):
        if self.headers.get("X-aws-ec2-metadata-token") != TOKEN:
            return self.answer(401, "no token")
        value = self.values.get(self.path.removeprefix("/latest/meta-data/"))
        return self.answer(404 if value is None else 200, value or "")

    def answer(self, code, text):
        self.send_response(code)
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, *_):
        pass


class InstanceTest(unittest.TestCase):
    def setUp(self):
        Metadata.values = {"instance-id": "i-1", "autoscaling/target-lifecycle-state": "InService"}
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Metadata)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = folder.name
        self.calls_path = os.path.join(self.dir, "calls")
        for name, text in (("systemctl", SYSTEMCTL), ("aws", NOTE % "aws"), ("journalctl", NOTE % "journalctl")):
            self.write(name, text, 0o755)
        self.write("status", "0\n")
        self.write("statuses", "")
        self.write("calls", "")
        with open(os.path.join(ROOT, "etc/esker/cloud.conf"), encoding="utf-8") as file:
            self.write("cloud.conf", file.read().replace("WAIT_SECS=", "WAIT_SECS=2 # "))

    def write(self, name, text, mode=0o644):
        path = os.path.join(self.dir, name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(path, mode)

    def start(self, script, *arguments):
        environment = os.environ | {
            "PATH": f"{self.dir}:{os.environ['PATH']}",
            "CALLS": self.calls_path,
            "STATE": self.dir,
            "ESKER_CLOUD_DIR": self.dir,
            "ESKER_RUN_DIR": self.dir,
            "ESKER_LIB": LIB,
            "ESKER_START_PAUSE": "0.3",
            "ESKER_WATCH_PAUSE": "0.1",
            "AWS_EC2_METADATA_SERVICE_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}/",
        }
        process = subprocess.Popen(
            [os.path.join(LIB, script), *arguments],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.addCleanup(process.kill)
        return process

    def run_script(self, script, *arguments):
        process = self.start(script, *arguments)
        said, _ = process.communicate(timeout=30)
        return process.returncode, said

    def calls(self, *beginnings):
        with open(self.calls_path, encoding="utf-8") as file:
            return [line.strip() for line in file if line.startswith(beginnings)]

    def starts(self):
        return self.calls("systemctl start esker-agent")

    def test_metadata_is_asked_with_a_token(self):
        self.assertEqual(self.run_script("imds", "instance-id"), (0, "i-1"))
        code, said = self.run_script("imds", "spot/instance-action")
        self.assertNotEqual(code, 0)
        self.assertEqual(said, "")

    def check_drain(self, path, value):
        watch = self.start("drain-watch")
        time.sleep(1)
        self.assertIsNone(watch.poll(), "it ended without a notice")
        self.assertEqual(self.calls(""), [])
        Metadata.values[path] = value
        said, _ = watch.communicate(timeout=30)
        self.assertEqual(watch.returncode, 0)
        done = self.calls("systemctl stop", "aws")
        self.assertEqual(len(done), 2, done)
        self.assertEqual(done[0], "systemctl stop esker-agent.service")
        self.assertIn("complete-lifecycle-action --lifecycle-hook-name drain", done[1])
        self.assertIn("--instance-id i-1", done[1])
        self.assertTrue(os.path.exists(os.path.join(self.dir, "esker-leaving")))
        return said

    def test_drains_when_the_group_terminates(self):
        said = self.check_drain("autoscaling/target-lifecycle-state", "Terminated")
        self.assertIn("drained in", said)

    def test_drains_on_a_spot_notice(self):
        said = self.check_drain("spot/instance-action", '{"action": "terminate"}')
        self.assertIn("spot takes this instance", said)

    def test_says_when_the_drain_was_not_complete(self):
        self.write("status", "76\n")
        said = self.check_drain("spot/instance-action", "{}")
        self.assertIn("NOT drained, exit code 76", said)

    def test_waits_for_the_agent_before_it(self):
        self.write("statuses", "75\n75\n0\n")
        code, said = self.run_script("start")
        self.assertEqual((code, len(self.starts())), (0, 3), said)
        self.assertEqual(len(self.calls("systemctl enable esker-agent")), 1)

    def test_gives_up_when_the_agent_before_it_never_drained(self):
        code, said = self.run_script("start")
        self.assertEqual(code, 1)
        self.assertIn("did not drain", said)
        self.assertIn(len(self.starts()), range(3, 9), "tries are not bounded by time")

    def test_tries_once_when_the_fault_is_another(self):
        self.write("statuses", "78\n0\n")
        code, said = self.run_script("start")
        self.assertEqual((code, len(self.starts())), (1, 1))
        self.assertIn("exit code 78", said)

    def test_starts_nothing_on_an_instance_that_is_leaving(self):
        self.write("esker-leaving", "")
        code, _ = self.run_script("start")
        self.assertEqual((code, self.starts()), (0, []))


if __name__ == "__main__":
    unittest.main()
