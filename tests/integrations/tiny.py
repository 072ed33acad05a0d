"""A task of three commands and a model of 0.3 million weights that can already write them.

The model is made and taught in the test: nothing is downloaded. It speaks ChatML, writes a valid
tool call nearly always, and chooses between two commands by chance: what it should choose, only
the reward can tell it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.small_task import write_task

INSTRUCTION = "Write the log."
A, B = "echo a >> /srv/log", "echo b >> /srv/log"

_TEST = """\
#!/bin/bash
mkdir -p /logs/verifier
fail=0
line() {
  [ "$(sed -n "$1p" /srv/log 2>/dev/null)" = "$2" ] && why= || { why='<failure/>'; fail=1; }
  echo "<testcase name=\\"test_line_$1\\">$why</testcase>"
}
{ echo "<testsuite>"; line 2 b; line 3 b; echo "</testsuite>"; } > /logs/verifier/junit.xml
echo $((1 - fail)) > /logs/verifier/reward.txt
"""

PLAYBOOK = f"""\
[[steps]]
id = "first"
message = ""
command = "{A}"
[[steps]]
id = "second"
message = ""
command = "{B}"
[[steps.wrong]]
message = ""
command = "{A}"
shows_in = ["test_line_2"]
[[steps]]
id = "third"
message = ""
command = "{B}"
[[steps.wrong]]
message = ""
command = "{A}"
shows_in = ["test_line_3"]
"""


def write_log_task(suite: Path, slug: str = "log") -> Path:
    """Write the task: lines 2 and 3 of /srv/log must be ``b``; return its folder."""
    folder = write_task(suite, slug, instruction=INSTRUCTION, test=_TEST)
    (folder / "playbook.toml").write_text(PLAYBOOK)
    return folder


def make_tokenizer(*told: str, size: int = 400) -> Any:
    """Return a byte-level BPE of ``size`` entries with ChatML's two marks, made for these texts."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    from sprout_env.integrations.chatml import ChatML

    plain = Tokenizer(models.BPE())
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    writer = ChatML(None)
    texts = [
        writer.call(A),
        writer.call(B),
        f"<|im_start|>user\n{INSTRUCTION}<|im_end|>\n<|im_start|>assistant\n",
        "\n<|im_start|>user\n<tool_response>\n\n</tool_response><|im_end|>\n",
        *told,
    ]
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>"],
        show_progress=False,
    )
    plain.train_from_iterator(texts * 20, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=plain,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        padding_side="left",
    )


def make_model(tokenizer: Any, *, width: int = 96, layers: int = 3) -> Any:
    """Return a Llama of about 0.3 million weights, fp32, untrained, the same each time."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


def warm_up(
    model: Any,
    sequences: list[tuple[list[int], list[int]]],
    steps: int = 120,
    *,
    rate: float = 8e-3,
) -> float:
    """Teach the format: pairs of ids and mask; return the last loss."""
    import torch

    optimiser = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, rate, total_steps=steps)
    width = max(len(ids) for ids, _ in sequences)
    ids = torch.zeros(len(sequences), width, dtype=torch.long)
    labels = torch.full((len(sequences), width), -100)
    for n, (told, mask) in enumerate(sequences):
        ids[n, : len(told)] = torch.tensor(told)
        labels[n, : len(told)] = torch.tensor(
            [token if on else -100 for token, on in zip(told, mask, strict=True)]
        )
    model.train()
    loss = torch.tensor(0.0)
    for _ in range(steps):
        optimiser.zero_grad()
        loss = model(input_ids=ids, labels=labels).loss
        loss.backward()
        optimiser.step()
        schedule.step()
    return float(loss.detach())


def conversations(tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """Return ids and masks of conversations: ``a`` first, then each of the four pairs."""
    from sprout_env.integrations.chatml import ChatML
    from sprout_env.transcript import Result, Turn

    dialect = ChatML(tokenizer)
    made = []
    for second in (A, B):
        for third in (A, B):
            ids = list(dialect.begin(INSTRUCTION))
            mask = [0] * len(ids)
            for command in (A, second, third):
                turn = Turn(command=command, result=Result(output="", exit_code=0))
                for piece, on in ((dialect.write(turn), 1), (dialect.show(turn), 0)):
                    ids += piece
                    mask += [on] * len(piece)
            made.append((ids, mask))
    return made


def tool_conversations(
    tokenizer: Any, schema: list[Any], prompt: str, played: list[list[tuple[str, str]]]
) -> list[tuple[list[int], list[int]]]:
    """Return ids and masks as the tokenizer's own template writes them, with its tools.

    Args:
        tokenizer: It has a template.
        schema: Of the tools.
        prompt: The user's message.
        played: Of each conversation, the commands and what they said.
    """
    made = []
    for conversation in played:
        messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
        told: tuple[list[int], list[int]] = ([], [])
        for command, output in conversation:
            _more(told, tokenizer, messages, schema, mask=0)
            call = {"name": "bash", "arguments": {"command": command}}
            messages.append({"role": "assistant", "tool_calls": [{"function": call}]})
            _more(told, tokenizer, messages, schema, mask=1)
            messages.append({"role": "tool", "name": "bash", "content": output})
        _more(told, tokenizer, messages, schema, mask=0)
        messages.append({"role": "assistant", "content": "done"})
        _more(told, tokenizer, messages, schema, mask=1)
        made.append(told)
    return made


def _more(
    told: tuple[list[int], list[int]], tokenizer: Any, messages: Any, schema: Any, *, mask: int
) -> None:
    text = tokenizer.apply_chat_template(
        messages, tools=schema, add_generation_prompt=not mask, tokenize=False
    )
    new = tokenizer.encode(text, add_special_tokens=False)[len(told[0]) :]
    told[0].extend(new)
    told[1].extend([mask] * len(new))
