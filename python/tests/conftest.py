"""Settings of the tests, and what several of them need."""
import os
import pathlib

import hypothesis
import numpy as np
import pytest

hypothesis.settings.register_profile(
    "mstarc", deadline=None, database=None, print_blob=True,
    max_examples=int(os.environ.get("MSTAR_TEST_EXAMPLES", "80")))
hypothesis.settings.load_profile("mstarc")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Where everything that a test needs was set up, a test that is skipped has failed."""
    outcome = yield
    report = outcome.get_result()
    if report.skipped and os.environ.get("MSTAR_TEST_NO_SKIPS"):
        report.outcome = "failed"


@pytest.fixture
def model():
    """The folder of a real encoder."""
    folder = os.environ.get("MSTAR_TEST_MODEL", "")
    if not pathlib.Path(folder, "config.json").is_file():
        pytest.skip("MSTAR_TEST_MODEL names no model folder")
    return folder


@pytest.fixture
def rng():
    return np.random.default_rng(7)
