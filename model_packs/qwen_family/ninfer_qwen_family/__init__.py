"""What the packs of the Qwen hybrids share: config, names, import rules, decoder, cards."""
