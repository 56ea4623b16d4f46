"""The runner's kit on one backend."""

from __future__ import annotations

import pytest

from tickertape.testing.runner import RunnerConformance
from tickertape.testing.subject import Subject


class TestRunner(RunnerConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, checked: Subject) -> Subject:
        return checked
