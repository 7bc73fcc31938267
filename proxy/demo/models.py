"""Tiny random models that a real llama-server loads in well under a second and runs at thousands of tokens a second.

Owns: the GGUF files for the demo, the tests and the benches, one of each memory kind that decides how llama-server
can reuse a prompt. Refuses: anything a model would be used for; these know nothing. Counterpart: `servers`.

- `dense`: attention only, the KV cache can be cut back to any token
- `hybrid`: attention and recurrent layers, the state can't go back without a checkpoint
- `swa`: sliding-window attention, the cache forgets what lies more than a window behind

What the weights must do. A model that says arbitrary bytes is no use: half a UTF-8 character, or what looks like the
beginning of a tool call, makes llama-server answer 500 once tools are given. So these only ever say capitals, of which
no word is made: what was said comes back in the next turn as the same tokens, as a real model's answer does. How:
coordinate 0 of the residual stream holds a constant that no layer writes to, and the output matrix turns it into
"capitals yes, all else no"; the other coordinates depend on the whole prompt and choose the letter. Right and wrong
KV states differ in the log-probabilities of these letters.
"""

import os
import secrets
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import numpy.typing as npt

from proxy.demo.vocabulary import Vocabulary, vocabulary

Kind = Literal["dense", "hybrid", "swa"]
Matrix = npt.NDArray[np.float32]

GENERATOR_VERSION = 2  # part of each cached file's name: raise it whenever the same arguments give other bytes

ARCHITECTURES: dict[Kind, str] = {"dense": "llama", "hybrid": "lfm2", "swa": "gemma3"}
WIDTH, LAYERS, HEADS, KV_HEADS, HIDDEN = 64, 6, 4, 2, 128
HEAD = WIDTH // HEADS
CONVOLUTION = 3  # how many tokens a recurrent layer remembers
WINDOW = 512  # how many tokens a sliding-window layer sees
CONTEXT = 131072
SEED = 7

# How strongly attention prefers some tokens. Even attention over thousands of tokens would make no single one matter,
# and attention to one token alone would make all the others not matter; this is between.
SHARPNESS = 1.6

REASONING = """{%- if reasoning_effort is defined and reasoning_effort -%}
{{- 'Reasoning: ' + reasoning_effort + '\\n\\n' -}}{%- endif -%}"""
TOOLS = """{%- if tools -%}{{- 'You may call these tools:\\n' -}}{%- for tool in tools -%}{{- tool | tojson + '\\n' -}}
{%- endfor -%}{{- '\\n' -}}{%- endif -%}"""
SYSTEM = """{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\\n\\n' -}}{%- endif -%}"""
TURNS = """{{- '<|im_end|>\\n' -}}{%- for message in messages -%}{%- if message.role != 'system' -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' -}}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"""


def chat_template(*, tools_last: bool) -> str:
    """The Jinja template: tools before the system text as most have it, or after it."""
    head = SYSTEM + TOOLS if tools_last else TOOLS + SYSTEM
    return "{{- '<|im_start|>system\\n' -}}" + REASONING + head + TURNS


def write_model(
    path: Path, kind: Kind, *, tools_last: bool = False, merge_trap: bool = False, seed: int = SEED
) -> None:
    """Write one model; another `seed` gives other weights of the same shape, size and name."""
    words = vocabulary(merge_trap=merge_trap)
    with closing(gguf.GGUFWriter(path, ARCHITECTURES[kind])) as writer:
        _describe(writer, kind)
        _add_vocabulary(writer, words)
        writer.add_chat_template(chat_template(tools_last=tools_last))
        for name, matrix in _tensors(kind, words, np.random.default_rng(seed)).items():
            writer.add_tensor(name, matrix)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()


def model_path(kind: Kind, *, tools_last: bool = False, merge_trap: bool = False, seed: int = SEED) -> Path:
    """The file of this model, written on first use and kept in the user's cache."""
    traits = ["tools-last"] * tools_last + ["merge-trap"] * merge_trap + [f"seed{seed}"] * (seed != SEED)
    path = models_directory() / ("-".join(["tiny", kind, *traits, f"v{GENERATOR_VERSION}"]) + ".gguf")
    if not path.exists():
        unfinished = path.with_name(f"{path.name}.tmp-{os.getpid()}-{secrets.token_hex(4)}")
        try:
            write_model(unfinished, kind, tools_last=tools_last, merge_trap=merge_trap, seed=seed)
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
    return path


def models_directory() -> Path:
    """`$XDG_CACHE_HOME/pi-prefix-cache-dev/models`, or a temporary directory where there is no writable home."""
    home = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        directory = Path(home).expanduser() / "pi-prefix-cache-dev" / "models"
        directory.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):
        return _temporary_directory()
    return directory if os.access(directory, os.W_OK) else _temporary_directory()


def _temporary_directory() -> Path:
    directory = Path(tempfile.gettempdir()) / f"pi-prefix-cache-dev-{os.getuid()}"
    directory.mkdir(mode=0o700, exist_ok=True)
    return directory


def _is_recurrent(kind: Kind, layer: int) -> bool:
    return kind == "hybrid" and layer % 2 == 0


def _describe(writer: gguf.GGUFWriter, kind: Kind) -> None:
    writer.add_name(f"tiny-{kind}")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_freq_base(10000.0)
    if kind == "hybrid":
        writer.add_head_count_kv([0 if _is_recurrent(kind, layer) else KV_HEADS for layer in range(LAYERS)])
        writer.add_shortconv_l_cache(CONVOLUTION)
    else:
        writer.add_head_count_kv(KV_HEADS)
    if kind == "swa":
        writer.add_key_length(HEAD)
        writer.add_value_length(HEAD)
        writer.add_sliding_window(WINDOW)


def _add_vocabulary(writer: gguf.GGUFWriter, words: Vocabulary) -> None:
    end_of_text, _, end_of_turn = range(len(words.tokens), len(words))
    normal, control = gguf.TokenType.NORMAL, gguf.TokenType.CONTROL
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(words.pre_tokenizer)
    writer.add_token_list([*words.tokens, *words.specials])
    writer.add_token_types([normal] * len(words.tokens) + [control] * len(words.specials))
    writer.add_token_merges(words.merges)
    writer.add_bos_token_id(end_of_text)
    writer.add_eos_token_id(end_of_turn)
    writer.add_add_bos_token(False)


def _tensors(kind: Kind, words: Vocabulary, random: np.random.Generator) -> dict[str, Matrix]:
    embedding, output = _random(random, len(words), WIDTH), _random(random, len(words), WIDTH)
    embedding[:, 0] = 8.0
    if kind == "swa":  # this architecture multiplies embeddings by the root of the width
        embedding /= WIDTH**0.5
    output[:, 0] = np.where(words.capitals, 100.0, -100.0)
    norm = "token_embd_norm" if kind == "hybrid" else "output_norm"
    tensors = {"token_embd": embedding, "output": output, norm: _ones(WIDTH)}
    for layer in range(LAYERS):
        mixer = _convolution(random) if _is_recurrent(kind, layer) else _attention(kind, random)
        block = mixer | _feed_forward(kind, random)
        tensors |= {f"blk.{layer}.{name}": matrix for name, matrix in block.items()}
    return {f"{name}.weight": matrix for name, matrix in tensors.items()}


def _convolution(random: np.random.Generator) -> dict[str, Matrix]:
    return {
        "attn_norm": _ones(WIDTH),
        "shortconv.conv": _random(random, WIDTH, CONVOLUTION),
        "shortconv.in_proj": _random(random, 3 * WIDTH, WIDTH),
        "shortconv.out_proj": _residual(random, WIDTH),
    }


def _attention(kind: Kind, random: np.random.Generator) -> dict[str, Matrix]:
    tensors = {
        "attn_norm": _ones(WIDTH),
        "attn_q": _random(random, WIDTH, WIDTH, scale=0.2),
        "attn_k": _random(random, KV_HEADS * HEAD, WIDTH, scale=0.2),
        "attn_v": _random(random, KV_HEADS * HEAD, WIDTH, scale=1.5),
        "attn_output": _residual(random, WIDTH),
    }
    if kind != "dense":
        tensors |= {"attn_q_norm": SHARPNESS * _ones(HEAD), "attn_k_norm": SHARPNESS * _ones(HEAD)}
    return tensors | ({"post_attention_norm": _ones(WIDTH)} if kind == "swa" else {})


def _feed_forward(kind: Kind, random: np.random.Generator) -> dict[str, Matrix]:
    tensors = {
        "ffn_norm": _ones(WIDTH),
        "ffn_gate": _random(random, HIDDEN, WIDTH),
        "ffn_up": _random(random, HIDDEN, WIDTH),
        "ffn_down": _residual(random, HIDDEN),
    }
    return tensors | ({"post_ffw_norm": _ones(WIDTH)} if kind == "swa" else {})


def _random(random: np.random.Generator, rows: int, columns: int, *, scale: float = 0.3) -> Matrix:
    return (random.standard_normal((rows, columns)) * scale).astype(np.float32)


def _residual(random: np.random.Generator, columns: int) -> Matrix:
    """A matrix whose result is added to the residual stream: it leaves coordinate 0 alone."""
    matrix = _random(random, WIDTH, columns)
    matrix[0] = 0.0
    return matrix


def _ones(size: int) -> Matrix:
    return np.ones(size, dtype=np.float32)
