"""Records in Lease objects of a Kubernetes cluster, one object each.

The objects exist already: the chart makes them, so that `get` and `patch` on their names are all the rights that are
needed. Compare-and-swap is a merge patch that carries the resourceVersion that was read; the API server answers 409
when the object has another one by now. Fields that are not ours (labels, annotations of Helm's) stay as they are.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

import msgspec

from tickertape.core.errors import StartupError
from tickertape.weights.slots.lease import LeaseRecord
from tickertape.weights.slots.register import RegisterDenied, RegisterFault
from tickertape.weights.slots.throttle import ThrottleRecord

__all__ = ["LeaseObjects", "LeaseRegister", "ThrottleRegister"]

_ANNOTATION: Final = "tickertape/throttle"
_log = logging.getLogger(__name__)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_US: Final = timedelta(microseconds=1)


class LeaseObjects:
    """Leases of one namespace, by name. Thread-safe. `namespace` None: the one that we run in, or that the kubeconfig
    names. Methods raise RegisterFault."""

    def __init__(self, namespace: str | None, *, timeout_s: float) -> None:
        """Raises StartupError when there is no cluster to talk to, or no library to talk with."""
        try:
            import httpx2
            import lightkube
            from lightkube.resources.coordination_v1 import Lease
            from lightkube.types import PatchType
        except ImportError:
            raise StartupError(
                "slots by Kubernetes Leases need lightkube (pip install 'tickertape[kubernetes]')", code="NoSlots"
            ) from None
        self._lease, self._merge = Lease, PatchType.MERGE
        try:
            # In a pod its service account, else $KUBECONFIG or ~/.kube/config.
            self._client = lightkube.Client(namespace=namespace, timeout=httpx2.Timeout(timeout_s))
        except Exception as error:
            _log.error("no Kubernetes cluster to keep slots in: %s", error)
            raise StartupError("neither a service account nor a kubeconfig for slots", code="NoSlots") from error
        self.namespace: str = self._client.namespace

    def get(self, name: str) -> Any:
        try:
            return self._client.get(self._lease, name)
        except Exception as error:
            raise self._fault(error, name, "get") from error

    def patch(self, name: str, body: Mapping[str, Any], version: str) -> str | None:
        """The new version; None: it is not at `version` any more."""
        body = {**body, "metadata": {**body.get("metadata", {}), "resourceVersion": version}}
        try:
            return _version(self._client.patch(self._lease, name, body, patch_type=self._merge))
        except Exception as error:
            if _status(error) == 409:
                return None
            raise self._fault(error, name, "patch") from error

    def close(self) -> None:
        self._client.close()

    def _fault(self, error: Exception, name: str, verb: str) -> RegisterFault:
        """Anything may come of a server, or of what stands before it: it all means that nothing is known."""
        lease, status = f"Lease {self.namespace}/{name}", _status(error)
        if status == 404:
            return RegisterDenied(
                f"there is no {lease}: each of num_origin_slots needs one, and the cool-down one more"
            )
        if status in (401, 403):
            return RegisterDenied(f"the service account may not {verb} {lease}: a Role must allow it get and patch")
        if status is not None:
            return RegisterFault(f"the Kubernetes API answers {status}")
        return RegisterFault(f"the Kubernetes API does not answer: {type(error).__name__}")


class _Objects(Protocol):
    """What the registers take of LeaseObjects."""

    def get(self, name: str) -> Any: ...

    def patch(self, name: str, body: Mapping[str, Any], version: str) -> str | None: ...


class LeaseRegister:
    """A `Register` of a LeaseRecord, spelled as Kubernetes does: `kubectl get leases` shows who holds what."""

    def __init__(self, objects: _Objects, name: str) -> None:
        self._objects, self._name = objects, name

    def read(self) -> tuple[LeaseRecord, str]:
        found = self._objects.get(self._name)
        spec = found.spec
        record = LeaseRecord()
        if spec is not None:
            record = LeaseRecord(
                holder=spec.holderIdentity or "",
                epoch=spec.leaseTransitions or 0,
                duration_s=float(spec.leaseDurationSeconds or 0),
                acquired_us=_to_us(spec.acquireTime),
                renewed_us=_to_us(spec.renewTime),
            )
        return record, _version(found)

    def compare_and_swap(self, record: LeaseRecord, version: str) -> str | None:
        spec = {
            "holderIdentity": record.holder or None,
            "leaseTransitions": record.epoch,
            "leaseDurationSeconds": math.ceil(record.duration_s) or None,
            "acquireTime": _to_text(record.acquired_us),
            "renewTime": _to_text(record.renewed_us),
        }
        return self._objects.patch(self._name, {"spec": spec}, version)


class ThrottleRegister:
    """A `Register` of the ThrottleRecord, in an annotation of a Lease that nobody holds."""

    def __init__(self, objects: _Objects, name: str) -> None:
        self._objects, self._name = objects, name

    def read(self) -> tuple[ThrottleRecord, str]:
        found = self._objects.get(self._name)
        text = (found.metadata.annotations or {}).get(_ANNOTATION, "{}")
        try:
            record = msgspec.json.decode(text, type=ThrottleRecord)
        except msgspec.DecodeError:  # edited by hand
            record = ThrottleRecord()
        return record, _version(found)

    def compare_and_swap(self, record: ThrottleRecord, version: str) -> str | None:
        text = msgspec.json.encode(record).decode()
        return self._objects.patch(self._name, {"metadata": {"annotations": {_ANNOTATION: text}}}, version)


def _version(found: Any) -> str:
    return str(found.metadata.resourceVersion)


def _status(error: Exception) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _to_us(time: datetime | None) -> int:
    return 0 if time is None else (time - _EPOCH) // _US


def _to_text(us: int) -> str | None:
    return (_EPOCH + us * _US).strftime("%Y-%m-%dT%H:%M:%S.%fZ") if us else None
