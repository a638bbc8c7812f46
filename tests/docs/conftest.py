"""The proxy recipe needs the proxy: CI installs nginx, other machines may have none."""

from __future__ import annotations

import shutil

collect_ignore = [] if shutil.which("nginx") else ["test_proxies.py", "test_serve_proxy.py"]
