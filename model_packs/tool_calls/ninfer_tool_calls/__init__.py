"""Grammars of tool calls, by how models write them."""
