"""What is there for good is looked through no more."""

from __future__ import annotations

import gc

from ninfer_serve.garbage import freeze_what_is_loaded


def test_what_is_loaded_is_frozen():
    try:
        freeze_what_is_loaded()
        assert gc.get_freeze_count() > 10_000
        assert gc.collect() == 0
    finally:
        gc.unfreeze()
