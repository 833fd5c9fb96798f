"""The mark of test files that need a card: skipped, with the reason, where there is none."""
import pytest

import mstarc


def needs_a_gpu(framework, found):
    """found: whether the framework of that name sees a GPU."""
    reason = "" if found else f"{framework} finds no GPU"
    if found:
        try:
            mstarc.device_info("cuda:0")
        except (RuntimeError, ValueError) as error:
            reason = f"the library has no cuda:0: {error}"
    return pytest.mark.skipif(reason != "", reason=reason)
