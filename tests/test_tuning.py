import subprocess
import sys


def test_importing_the_library_changes_no_process_setting() -> None:
    """Neither the allocator nor the number of threads: only entry points may."""
    code = """
import ctypes, torch
calls = []
real = ctypes.CDLL.__getattr__
ctypes.CDLL.__getattr__ = lambda self, name: (calls.append(name), real(self, name))[1]
before = torch.get_num_threads()
import sepgconv, sepgconv.tuning
assert torch.get_num_threads() == before
assert "mallopt" not in calls
sepgconv.tuning.tune()
assert "mallopt" in calls or not __import__("os").path.exists("/lib/x86_64-linux-gnu/libc.so.6")
"""
    subprocess.run([sys.executable, "-c", code], check=True)
