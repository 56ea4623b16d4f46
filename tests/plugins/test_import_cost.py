"""What a process pays for plugins it does not use."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import sys, time
import tickertape.plugins
before = set(sys.modules)
started = time.perf_counter()
import {module}
print(time.perf_counter() - started)
print(*sorted({{name.partition(".")[0] for name in set(sys.modules) - before}}))
"""


@pytest.mark.parametrize("module", ["tickertape.plugins.backends.reference", "tickertape.plugins.backends.scripted"])
def test_registering_a_backend_is_light(module: str) -> None:
    """Under 50 ms (the best of three, as the machine may be busy), and without what does the work."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", PROBE.format(module=module)], capture_output=True, text=True, check=True, timeout=60
        ).stdout.splitlines()
        for _ in range(3)
    ]
    assert min(float(seconds) for seconds, _ in outputs) < 0.05
    assert set(outputs[0][1].split()) <= {"tickertape"}


def test_the_pytest_plugin_is_light() -> None:
    code = "import sys, tickertape.testing.pytest_plugin; print(*{'torch', 'transformers', 'numpy'} & set(sys.modules))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert run.stdout.strip() == ""
