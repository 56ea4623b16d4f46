"""The engine's kit on one backend."""

from __future__ import annotations

import pytest

from tickertape.testing.engine import EngineConformance
from tickertape.testing.rig import EngineSubject


class TestEngine(EngineConformance):
    @pytest.fixture(scope="class")
    @classmethod
    def subject(cls, checked: EngineSubject) -> EngineSubject:
        return checked
