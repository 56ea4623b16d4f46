"""The fake origin: a hub to huggingface_hub, an honest HTTP server otherwise, and as faulty as told."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from huggingface_hub import HfApi

from tests.sim.files import Commit, read_commit
from tests.sim.models import write_sharded
from tests.sim.origin import Origin
from tests.sim.traffic import Fault, Pace, RequestLimit

SHARD = "model-00001-of-00016.safetensors"


def test_huggingface_hub_downloads_from_it(origin: Origin, commit: Commit, tmp_path: Path) -> None:
    script = "import sys, huggingface_hub; print(huggingface_hub.snapshot_download('org/tiny'))"
    environment = {"HF_ENDPOINT": origin.url, "HF_HOME": str(tmp_path), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    directory = Path(done.stdout.strip())
    assert directory.name == commit.sha
    for name, file in commit.files.items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == file.sha256
    assert origin.log.num_bytes == commit.size_bytes


def test_a_commit_is_described_with_its_digests(origin: Origin, commit: Commit) -> None:
    info = HfApi(origin.url).model_info("org/tiny", files_metadata=True)
    assert info.sha == commit.sha
    assert info.siblings is not None
    found = {s.rfilename: (s.size, s.lfs.sha256 if s.lfs else s.blob_id) for s in info.siblings}
    assert found == {n: (f.size_bytes, f.sha256 if f.large else f.git_sha1) for n, f in commit.files.items()}


def test_ranges_and_validators(origin: Origin, commit: Commit) -> None:
    url, content = f"{origin.url}/org/tiny/resolve/main/{SHARD}", commit.files[SHARD].path.read_bytes()
    with httpx.Client() as client:
        whole = client.get(url)
        part = client.get(url, headers={"Range": "bytes=100-199", "If-Match": whole.headers["ETag"]})
        tail = client.get(url, headers={"Range": f"bytes={len(content) - 5}-"})
        changed = client.get(url, headers={"Range": "bytes=0-9", "If-Range": '"another"'})
        refused = client.get(url, headers={"Range": "bytes=0-9", "If-Match": '"another"'})
        beyond = client.get(url, headers={"Range": f"bytes={len(content)}-"})
    assert (whole.status_code, whole.content) == (200, content)
    assert (part.status_code, part.content) == (206, content[100:200])
    assert part.headers["Content-Range"] == f"bytes 100-199/{len(content)}"
    assert (tail.status_code, tail.content) == (206, content[-5:])
    assert (changed.status_code, changed.content) == (200, content)
    assert (refused.status_code, beyond.status_code) == (412, 416)
    assert [request.num_bytes for request in origin.log.requests] == [len(content), 100, 5, len(content), 0, 0]


def test_each_fault_is_what_it_says(origin: Origin, commit: Commit) -> None:
    url, content = f"{origin.url}/org/tiny/resolve/main/{SHARD}", commit.files[SHARD].path.read_bytes()
    with httpx.Client(timeout=0.3) as client:
        origin.fault = lambda request: Fault(status=503, retry_after_s=7)
        assert (client.get(url).status_code, client.get(url).headers["Retry-After"]) == (503, "7")
        origin.fault = lambda request: Fault(wrong_at=1000)
        wrong = client.get(url).content
        assert [n for n in range(len(content)) if wrong[n] != content[n]] == [1000]
        origin.fault = lambda request: Fault(ignores_range=True)
        assert client.get(url, headers={"Range": "bytes=5-9"}).status_code == 200
        origin.fault = lambda request: Fault(cut_after=1000)
        with pytest.raises(httpx.RemoteProtocolError, match="received 1000 bytes"):
            client.get(url)
        origin.fault = lambda request: Fault(stall_after=1000)
        with pytest.raises(httpx.ReadTimeout):
            client.get(url)


def test_a_token_and_a_limit_bar_the_way(origin: Origin) -> None:
    url = f"{origin.url}/org/tiny/resolve/main/{SHARD}"
    origin.token = "open"
    assert httpx.get(url).status_code == 401
    assert httpx.get(url, headers={"Authorization": "Bearer open"}).status_code == 200
    origin.token, origin.limit = None, RequestLimit(0, 3600)
    refused = httpx.get(url)
    assert refused.status_code == 429
    assert 1 <= int(refused.headers["Retry-After"]) <= 3600


def test_main_moves_and_commits_stay(origin: Origin, commit: Commit, tmp_path: Path) -> None:
    later = read_commit(write_sharded(tmp_path / "later", 1 << 20, seed=1))
    origin.repositories["org/tiny"].move(later)
    found = [httpx.get(f"{origin.url}/org/tiny/resolve/{at}/{SHARD}") for at in ("main", commit.sha, later.sha)]
    assert [answer.headers["X-Repo-Commit"] for answer in found] == [later.sha, commit.sha, later.sha]
    assert found[0].content != found[1].content
    assert httpx.get(f"{origin.url}/api/models/org/tiny/revision/gone").headers["X-Error-Code"] == "RevisionNotFound"


def test_pace_is_shared_first_come_first_served() -> None:
    now = [100.0]
    pace = Pace(1000, clock=lambda: now[0])
    assert [pace.reserve(500) for _ in range(3)] == [0.0, 0.5, 1.0]
    now[0] += 1.5
    assert pace.reserve(500) == 0.0
    assert Pace(None).reserve(1 << 40) == 0.0


def test_limit_counts_by_window_and_says_when_the_next_begins() -> None:
    now = [10.0]
    limit = RequestLimit(2, 5.0, clock=lambda: now[0])
    assert [limit.admit() for _ in range(3)] == [None, None, 5]
    now[0] = 12.6
    assert limit.admit() == 3
    now[0] = 15.0
    assert limit.admit() is None
    shut = RequestLimit(1, 5.0, shut_s=7.0, clock=lambda: now[0])
    assert shut.admit() == 5
    now[0] = 21.0
    assert shut.admit() == 4  # the rest of the window it opens in is lost, as it is when others use it up
    now[0] = 25.0
    assert shut.admit() is None


def test_it_leaves_no_thread_whatever_clients_do(commit: Commit) -> None:
    before = threading.active_count()
    with httpx.Client() as client:
        with Origin(bytes_s=1000) as origin:
            origin.add("org/tiny", commit)
            answer = client.send(
                client.build_request("GET", f"{origin.url}/org/tiny/resolve/main/{SHARD}"), stream=True
            )
            assert threading.active_count() == before + 2
        assert threading.active_count() == before
        answer.close()
