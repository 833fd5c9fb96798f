"""What the tests on cuda:0 share. They run over the mock driver, where the device's memory is the
host's, or on a card (run_on_a_gpu.py)."""
import ctypes

import pytest

from mstarc import _core


class Mock:
    """The driver under the extension. Over a card it knows nothing."""

    def __init__(self):
        library = ctypes.CDLL(_core.__file__)
        self.is_there = hasattr(library, "mock_module_fault")
        if self.is_there:
            self._library = library
            library.mock_module_fault.restype = ctypes.c_char_p
            library.mock_module_allocations.restype = ctypes.c_int64
            library.mock_module_waits.restype = ctypes.c_int64
            library.mock_module_is_after.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def fault(self):
        return self._library.mock_module_fault().decode() if self.is_there else ""

    def live(self):
        return self._library.mock_module_live() if self.is_there else 0

    def is_after(self, stream, other):
        """Whether what a stream gets from now on runs after all that the other one has got."""
        return not self.is_there or bool(self._library.mock_module_is_after(stream, other))

    def waits(self):
        """How often the host waited for a stream."""
        return self._library.mock_module_waits() if self.is_there else 0

    def allocations(self):
        return self._library.mock_module_allocations() if self.is_there else 0


@pytest.fixture(scope="session", autouse=True)
def mock():
    return Mock()


@pytest.fixture(autouse=True)
def no_faults(mock):
    """A launch that a card would have answered with nonsense."""
    yield
    assert mock.fault() == ""
