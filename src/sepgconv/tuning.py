"""What entry points set before they compute. Importing the library sets nothing."""

import ctypes
import os

# From glibc's malloc.h: below these sizes memory is kept and used again instead of being handed back page by page.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEEP = 1 << 30


def tune() -> None:
    """Lets glibc keep large blocks, so that activations are not paged in anew at every step (1.3–2× on a CPU)."""
    if os.environ.get("SEPGCONV_TUNE", "1") == "0":
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # another libc manages its memory in another way
        return
    mallopt(M_MMAP_THRESHOLD, KEEP)
    mallopt(M_TRIM_THRESHOLD, -1)  # never
