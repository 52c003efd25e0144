"""NInfer: a local LLM inference runtime, open at its seams."""

__version__ = "0.1.0"
