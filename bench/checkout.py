"""Importing this lets a bench run from a checkout, in which the package is not installed."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

if importlib.util.find_spec("statifier_router") is None:
    sys.path.insert(0, str(Path(__file__).parents[1]))
