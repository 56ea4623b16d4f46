"""The control of the scale-out runs: fetches a model as huggingface_hub does, then answers probes.

python tests/sim/hub_server.py ORG/NAME --host ADDRESS --port PORT
"""

from __future__ import annotations

import argparse
from http.server import BaseHTTPRequestHandler, HTTPServer

from huggingface_hub import snapshot_download


class _Health(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("repo")
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    snapshot_download(options.repo)
    HTTPServer((options.host, options.port), _Health).serve_forever()


if __name__ == "__main__":
    main()
