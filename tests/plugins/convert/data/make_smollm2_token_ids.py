"""Makes smollm2_token_ids.json: what llama.cpp makes of varied text with SmolLM2's vocabulary.

Usage: python make_smollm2_token_ids.py SmolLM2-135M-Instruct.Q4_1.gguf   (needs llama-cpp-python)
"""

import json
import sys
from pathlib import Path

import llama_cpp

TEXTS = (
    "", "Hello, world!", "What is 12345 times 2? I'd say 24,690.", "a  5", "x   42  y", "tab\t7",
    "line\n\n3", "  leading", "trailing   ", "naïve café Über straße", "日本語のテキスト 123",
    "🙂🙃 emoji 4️⃣", "def f(x):\n    return x**2 + 10\n", "I'll you're we've they'd it's 'S",
    "½ ² ٣ ४", "1e-5 0x1F", "\u200b zero width", "a" * 300, " " * 65 + "1", "mixed123abc456", "'1",
    "\r\n\r\n 9", "https://x.y/z?q=1&r=2", "<|im_start|>user", "\x00\x01\x7f",
)


def main(path: str) -> None:
    model = llama_cpp.Llama(model_path=path, vocab_only=True, verbose=False)
    made = [
        {"text": text, "ids": model.tokenize(text.encode(), add_bos=False, special=False)}
        for text in TEXTS
    ]
    out = Path(__file__).with_name("smollm2_token_ids.json")
    rows = ",\n".join(json.dumps(row) for row in made)
    out.write_text(f"[\n{rows}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
