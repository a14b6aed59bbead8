"""Is it really equivariant? Measures of a whole network, and a page that shows them."""

from sepgconv.audit._audit import Audit, audit
from sepgconv.audit._page import page

__all__ = ["Audit", "audit", "page"]
