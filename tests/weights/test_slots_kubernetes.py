"""Slots as Lease objects: lightkube against a server with a real compare-and-swap."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.sim.kube import KubeApi
from tickertape.core.errors import StartupError
from tickertape.core.messages import FetchOptions
from tickertape.weights.fetch.ports import SlotLost
from tickertape.weights.slots.choose import choose_slots
from tickertape.weights.slots.kubernetes import LeaseObjects, LeaseRegister, ThrottleRegister
from tickertape.weights.slots.lease import LeaseRecord, Terms
from tickertape.weights.slots.leased import LeasedSlots
from tickertape.weights.slots.throttle import ThrottleRecord

NAMES = ("tickertape-slot-0", "tickertape-slot-1", "tickertape-slot-cooldown")


@pytest.fixture
def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[KubeApi]:
    with KubeApi() as api:
        api.add(*NAMES)
        monkeypatch.setenv("KUBECONFIG", str(api.write_kubeconfig(tmp_path / "kubeconfig")))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield api


def slots(where: str = "kubernetes", count: int = 2, terms: Terms | None = None) -> LeasedSlots:
    made = choose_slots(FetchOptions(origin_slots=where, num_origin_slots=count), Path("/nowhere"), terms=terms)
    assert isinstance(made, LeasedSlots)
    return made


def test_as_many_get_one_as_there_are_and_a_slot_given_back_goes_to_the_next(api: KubeApi) -> None:
    with closing(slots()) as a, closing(slots()) as b, closing(slots()) as c:
        first, second = a.acquire(), b.acquire()
        assert first is not None
        assert second is not None
        assert {first.index, second.index} == {0, 1}
        assert c.acquire() is None
        first.release()
        third = c.acquire()
        assert third is not None
        assert (third.index, third.epoch) == (first.index, first.epoch + 1)
        with pytest.raises(SlotLost, match="given back"):
            first.check()
        third.check()
        assert api.objects[NAMES[0]]["spec"]["leaseTransitions"] == 2
    assert all("holderIdentity" not in api.objects[name]["spec"] for name in NAMES[:2]), "closing gives back"


def test_it_needs_no_rights_but_to_get_and_patch_what_the_chart_made(api: KubeApi) -> None:
    with closing(slots("kubernetes:models/tickertape-slot")) as some:
        slot = some.acquire()
        assert slot is not None
        some.throttled(30.0)
        assert some.renew()
    assert {method for method, _ in api.asked} == {"GET", "PATCH"}
    assert {name for _, name in api.asked} <= set(NAMES)
    assert set(api.answered) == {200}
    assert all(api.objects[name]["metadata"]["labels"] == {"managed-by": "chart"} for name in NAMES), "not ours"


def test_records_are_spelled_as_kubernetes_does_and_read_back_to_the_microsecond(api: KubeApi) -> None:
    objects = LeaseObjects(None, timeout_s=5.0)
    try:
        lease = LeaseRegister(objects, NAMES[0])
        empty, version = lease.read()
        assert empty == LeaseRecord()
        record = LeaseRecord().claimed("me", 15.0, wall_us=1_700_000_000_000_001)
        assert lease.compare_and_swap(record, version) is not None
        assert lease.compare_and_swap(record, version) is None, "it is not at this version any more"
        assert lease.read()[0] == record
        assert api.objects[NAMES[0]]["spec"] == {
            "holderIdentity": "me",
            "leaseTransitions": 1,
            "leaseDurationSeconds": 15,
            "acquireTime": "2023-11-14T22:13:20.000001Z",
            "renewTime": "2023-11-14T22:13:20.000001Z",
        }
        throttle = ThrottleRegister(objects, NAMES[2])
        empty_throttle, version = throttle.read()
        assert empty_throttle == ThrottleRecord()
        paused = ThrottleRecord(3, 12.5, 1, 2)
        assert throttle.compare_and_swap(paused, version) is not None
        assert throttle.read()[0] == paused
    finally:
        objects.close()


def test_one_429_stops_everybody_and_halves_the_slots(api: KubeApi) -> None:
    with closing(slots(terms=Terms(retry_s=0.001))) as a, closing(slots(terms=Terms(retry_s=0.001))) as b:
        slot = b.acquire()
        assert slot is not None
        a.throttled(100.0)
        a.throttled(90.0)  # one more of the same
        assert 100 <= a.cooldown_s() <= 110
        assert 99 <= b.cooldown_s() <= 110
        assert a.acquire() is None
        slot.check()
        assert '"num_slots":1' in api.objects[NAMES[2]]["metadata"]["annotations"]["tickertape/throttle"]


def test_a_slot_that_somebody_took_away_is_lost_at_the_next_renewal(api: KubeApi) -> None:
    with closing(slots()) as some:
        slot = some.acquire()
        assert slot is not None
        api.objects[NAMES[0]]["spec"]["holderIdentity"] = "an operator"
        api.objects[NAMES[0]]["metadata"]["resourceVersion"] = "999"
        slot.check()
        assert not some.renew()
        with pytest.raises(SlotLost, match="somebody else"):
            slot.check()


def forbid(api: KubeApi) -> None:
    api.forbidden |= set(NAMES)


def remove_the_cooldown(api: KubeApi) -> None:
    del api.objects[NAMES[2]]


def be_unwell(api: KubeApi) -> None:
    api.failing = 503


def be_gone(api: KubeApi) -> None:
    api.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("spoil", "line"),
    [
        (forbid, "may not get Lease models/tickertape-slot-cooldown: a Role must allow it get and patch"),
        (remove_the_cooldown, "there is no Lease models/tickertape-slot-cooldown: each of num_origin_slots needs one"),
        (be_unwell, "the Kubernetes API answers 503"),
        (be_gone, "the Kubernetes API does not answer: ConnectError"),
    ],
)
def test_no_slot_and_one_clear_line_when_the_chart_or_the_server_is_wrong(
    api: KubeApi, caplog: pytest.LogCaptureFixture, spoil: Callable[[KubeApi], None], line: str
) -> None:
    spoil(api)
    some = slots(terms=Terms(retry_s=0.001))  # so that it does not answer from memory
    with closing(some):
        assert some.acquire() is None
        assert some.acquire() is None
        assert some.trouble is not None
        assert line in some.trouble
        some.throttled(5.0)
        assert some.cooldown_s() > 4, "it keeps to it itself, whoever else hears of it"
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 1
    assert line in said[0]


def test_a_lease_too_few_costs_that_slot_alone(api: KubeApi, caplog: pytest.LogCaptureFixture) -> None:
    with closing(slots(count=3)) as many:
        assert [many.acquire() is not None for _ in range(3)] == [True, True, False]
        assert many.acquire() is None
        assert many.trouble is None, "the others are to be had, in turn"
    (said,) = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert "there is no Lease models/tickertape-slot-2" in said


def test_the_renewing_thread_ends_with_what_it_renews(api: KubeApi) -> None:
    def threads() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread.name == "slots"]

    with closing(slots(terms=Terms(30.0, 20.0, 0.02))) as some:
        slot = some.acquire()
        assert slot is not None
        (thread,) = threads()
        slot.release()
        thread.join(10)
        assert not thread.is_alive()
        assert some.acquire() is not None
        assert len(threads()) == 1
    assert threads() == []


@pytest.mark.parametrize("where", ["kubernetes:models", "kubernetes:"])
def test_a_wrong_name_is_said_at_once(where: str) -> None:
    with pytest.raises(StartupError, match="NAMESPACE/PREFIX") as caught:
        slots(where)
    assert caught.value.code == "NoSlots"


def test_no_cluster_is_said_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(StartupError, match="neither a service account nor a kubeconfig") as caught:
        slots()
    assert caught.value.code == "NoSlots"
    assert str(tmp_path) not in caught.value.message
