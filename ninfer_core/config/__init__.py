"""Launch options, and the plan they lead to."""

import numpy  # noqa: F401  before torch, whose own import of it would swallow Ctrl-C

from ninfer_core.config.launch import LaunchConfig, load_config
from ninfer_core.config.ledger import Ledger, LedgerLine
from ninfer_core.config.resolve import EnginePlan, resolve

__all__ = ["EnginePlan", "LaunchConfig", "Ledger", "LedgerLine", "load_config", "resolve"]
