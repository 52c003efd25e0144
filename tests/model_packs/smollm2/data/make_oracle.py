"""Makes oracle.json: what transformers computes with the same GGUF file in fp32.

Usage: python make_oracle.py SmolLM2-135M-Instruct.Q4_1.gguf

- ``answers``: greedy answers, 64 tokens each whatever they are, end tokens included. The margin is
  the smallest distance between the best and the second logit in it: differences far below it
  cannot change a token.
- ``tokens``: ids of varied text. The tokenizer that transformers makes of a GGUF file leaves out
  the cut at digits, so no digit here follows several spaces.
- ``reading``: logits at each of 200 tokens of a text: the 8 largest, and those of 8 fixed ids.
"""

import json
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

NUM_TOKENS, NUM_READ = 64, 200
FIXED_IDS = [0, 2, 28, 198, 1000, 9999, 30000, 49151]
PROMPTS = (
    "What is the capital of France?",
    "Write a short story about a fox and a river.",
    "Explain photosynthesis to a child.",
    "List the first ten prime numbers.",
    "def fibonacci(n):",
    "Translate to French: Good morning, my friend.",
    "What is 12345 + 67890?",
    "Name three uses of   copper, and why.",
    "Schreibe einen Satz über den Herbst. 🍂",
    "Summarise: The sea was calm, the ship was old, and the captain had not slept for 3 days.",
)
TEXTS = (
    "The quick brown fox jumps over the lazy dog.", "Don't you think it's 2 late?",
    "for (int i = 0; i < n; ++i) {\n\tsum += a[i];\n}", "Ærøskøbing, Łódź, 北京, Ελλάδα, עברית",
    "  two leading,   three inner, trailing  ", "emoji 👩‍👩‍👧 and ﷽", "CamelCase snake_case_word",
    "3.14159 and 1,000,000", "\n\n\nnew\r\nlines\t\ttabs",
)
TEXT = """\
The river rose in the night. By morning the lower field was a lake, and the 3 oldest apple trees
stood in it up to their forks. Nobody had seen such water since 1954, when the mill was still a
mill and the road to town ran along the bank. "It will go down by Sunday," said the miller's
grandson, who had never run a mill in his life; he sold insurance, 12 miles away, and knew about
floods what his customers told him. The children had built a raft of two doors and four barrels.
    def depth(day):
        return max(0.0, 2.75 - 0.4 * day)
They measured with a stick, wrote the numbers on the barn, and drew a line through them that said
Thursday. On Thursday the sun came out, the herons came down, and the lake, without a sound, went.
"""


def answer(model, ids):
    """Greedy tokens after ``ids``, and the smallest margin of the choices."""
    tokens, margins, cache = [], [], None
    step = torch.tensor([ids])
    for _ in range(NUM_TOKENS):
        out = model(step, cache=cache, use_cache=True)
        best = out.logits[0, -1].topk(2)
        margins.append(float(best.values[0] - best.values[1]))
        tokens.append(int(best.indices[0]))
        cache, step = out.cache, best.indices[:1].unsqueeze(0)
    return {"ids": ids, "answer": tokens, "margin": round(min(margins), 4)}


def answers(model, tokenizer):
    for prompt in PROMPTS:
        messages = [{"role": "user", "content": prompt}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        yield {"prompt": prompt, **answer(model, ids)}


def tokens(tokenizer):
    return [{"text": text, "ids": tokenizer(text).input_ids} for text in TEXTS]


def reading(model, tokenizer):
    tokens = tokenizer(TEXT).input_ids[:NUM_READ]
    logits = model(torch.tensor([tokens])).logits[0]
    largest = logits.topk(8)
    return {
        "text": TEXT, "tokens": tokens, "largest_ids": largest.indices.tolist(),
        "largest": rounded(largest.values), "fixed_ids": FIXED_IDS,
        "fixed": rounded(logits[:, FIXED_IDS]),
    }


def rounded(rows):
    return [[round(value, 5) for value in row] for row in rows.tolist()]


@torch.inference_mode()
def main(path):
    file = Path(path)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    model = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    )
    made = {
        "answers": list(answers(model, tokenizer)), "tokens": tokens(tokenizer),
        "reading": reading(model, tokenizer),
    }
    text = json.dumps(made, ensure_ascii=False, separators=(",", ":"))
    for start in ('{"prompt"', '"tokens":[{', '{"text"', '"reading"'):
        text = text.replace(start, "\n" + start)
    Path(__file__).with_name("oracle.json").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
