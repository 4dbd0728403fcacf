"""The families of generated tasks: what each composes from a draft. Sizes are names here, numbers in ``generator``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from stitchcuda.training.generator_values import ACTIVATIONS, REDUCTIONS, Draft, Value

Sizes = dict[str, int]
"""Numbers by their names in the source."""

ROWS = ("ROWS", "COLS")
MATRIX = ("BATCH", "WIDTH")
IMAGE = ("BATCH", "CHANNELS", "SIZE", "SIZE")
TOKENS = ("BATCH", "LENGTH", "DIM")


@dataclass(frozen=True)
class Family:
    """One kind of task."""

    name: str
    share: float
    """Of all tasks."""
    compose: Callable[[Draft], Value]
    sizes: Callable[[Draft], dict[Literal["full", "cpu", "audit"], Sizes]]
    mode: Callable[[Draft], str | None] = lambda draft: None
    residence: str | None = None


def _row_sizes(draft: Draft) -> dict[Literal["full", "cpu", "audit"], Sizes]:
    cols = draft.rng.choice((64, 128, 192, 256, 512, 768, 1000, 1024, 2048, 3072, 4096, 4100, 8192))
    elements = draft.rng.choice((1 << 24, 1 << 25, 1 << 26))
    return {
        "full": {"ROWS": elements // cols // 8 * 8, "COLS": cols},
        "cpu": {"ROWS": max(8, (1 << 20) // cols), "COLS": cols},
        "audit": {"ROWS": 24, "COLS": draft.rng.choice((36, 40, 48))},
    }


def _matrix_sizes(draft: Draft) -> dict[Literal["full", "cpu", "audit"], Sizes]:
    rng = draft.rng
    width, out = rng.choice((256, 512, 1024, 2048)), rng.choice((256, 512, 768, 1024, 4096))
    return {
        "full": {"BATCH": rng.choice((128, 512, 1024, 4096)), "WIDTH": width, "OUT": out},
        "cpu": {"BATCH": 128, "WIDTH": 256, "OUT": 256},
        "audit": {"BATCH": 12, "WIDTH": 24, "OUT": 32},
    }


def _image_sizes(draft: Draft) -> dict[Literal["full", "cpu", "audit"], Sizes]:
    rng = draft.rng
    return {
        "full": {
            "BATCH": rng.choice((16, 32, 64)),
            "CHANNELS": rng.choice((16, 32, 64)),
            "OUT": rng.choice((32, 64, 128)),
            "SIZE": rng.choice((28, 32, 56, 64)),
        },
        "cpu": {"BATCH": 4, "CHANNELS": 16, "OUT": 32, "SIZE": 32},
        "audit": {"BATCH": 3, "CHANNELS": 8, "OUT": 16, "SIZE": 10},
    }


def _token_sizes(draft: Draft) -> dict[Literal["full", "cpu", "audit"], Sizes]:
    rng = draft.rng
    return {
        "full": {
            "BATCH": rng.choice((2, 8, 16)),
            "LENGTH": rng.choice((128, 256, 512, 1024)),
            "DIM": rng.choice((256, 512, 768)),
            "HEADS": rng.choice((4, 8)),
        },
        "cpu": {"BATCH": 2, "LENGTH": 64, "DIM": 128, "HEADS": 4},
        "audit": {"BATCH": 2, "LENGTH": 10, "DIM": 32, "HEADS": 4},
    }


def elementwise(draft: Draft) -> Value:
    """Chains of elementwise operators over one to three inputs."""
    return draft.chain(draft.input(ROWS), draft.rng.randint(2, 7), inputs=3)


def reduction(draft: Draft) -> Value:
    """Elementwise operators, one number for each row, and what is done with it."""
    value = draft.chain(draft.input(ROWS), draft.rng.randint(1, 4))
    return _reduced(draft, value)


def _reduced(draft: Draft, value: Value) -> Value:
    names = [name for name in REDUCTIONS if not (value.settled and name in (value.settled, "sum", "mean"))]
    names = [name for name in names if value.negative or name != "mean_abs"]
    name = draft.rng.choice(names)
    code = REDUCTIONS[name].format(x=value.name)
    expression = f"{name}({value.expression})"
    signed = name in ("sum", "mean", "amax", "amin", "logsumexp")
    if draft.rng.random() < 0.4:
        kept = draft.set(code[:-1] + ", keepdim=True)", value, expression)
        joined = draft.rng.choice(("sub", "div", "mul", "add"))
        return draft.chain(draft.binary(value, kept, (joined,)), draft.rng.randint(0, 2))
    row = draft.set(
        code, value, expression, shape=value.shape[:-1], negative=value.negative and signed, grown=name == "sum"
    )
    return draft.unary(row) if draft.rng.random() < 0.5 else row


def norm(draft: Draft) -> Value:
    """A normalisation of rows between elementwise operators."""
    value = draft.chain(draft.input(ROWS), draft.rng.randint(0, 3))
    value = _normalised(draft, value)
    return draft.chain(value, draft.rng.randint(1 if value.expression.count("(") < 2 else 0, 3))


def _normalised(draft: Draft, value: Value) -> Value:
    last = value.shape[-1]
    kind = draft.rng.choice(("layer_norm", "affine_layer_norm", "rms_norm", "l2", "standardise", "l1"))
    x, expression = value.name, f"{kind}({value.expression})"
    known = {"negative": value.negative, "grown": False}
    if kind == "layer_norm":
        return draft.set(f"F.layer_norm({x}, ({last},))", value, expression, negative=True, grown=False, settled="mean")
    if kind == "affine_layer_norm":
        return draft.set(f"{draft.module(f'nn.LayerNorm({last})')}({x})", value, expression, negative=True, grown=False)
    if kind == "rms_norm":
        weight = draft.parameter((last,), 1.0).name
        code = f"{x} * torch.rsqrt(torch.mean({x} * {x}, dim=-1, keepdim=True) + 1e-6) * {weight}"
        return draft.set(code, value, expression, **known)
    if kind == "standardise":
        mean = draft.set(f"torch.mean({x}, dim=-1, keepdim=True)", value)
        code = f"({x} - {mean.name}) / (torch.std({x}, dim=-1, keepdim=True) + 1e-5)"
        return draft.set(code, value, expression, negative=True, grown=False, settled="mean")
    order = 2 if kind == "l2" else 1
    return draft.set(f"F.normalize({x}, p={order}, dim=-1) * 8.0", value, expression, **known)


def softmax(draft: Draft) -> Value:
    """A softmax over rows, with what comes before and after."""
    value = draft.chain(draft.input(ROWS), draft.rng.randint(0, 3))
    drawn = draft.rng.random()
    if drawn < 0.3 and len(draft.inputs) < 2:
        value = draft.binary(value, draft.input(value.shape), ("add", "sub"))
    elif drawn < 0.6:
        value = draft.set(f"{value.name} * {draft.rng.choice((0.25, 0.5, 2.0))}", value, f"scale({value.expression})")
    name = draft.rng.choice(("softmax", "softmax", "log_softmax", "softmin"))
    told: dict[str, object] = {"negative": False, "grown": False, "settled": "sum"}
    if name == "log_softmax":
        told = {"negative": True, "grown": True}
    value = draft.set(f"F.{name}({value.name}, dim=-1)", value, f"{name}({value.expression})", **told)
    after = draft.rng.random()
    if after < 0.35:
        other = draft.input(value.shape) if len(draft.inputs) < 3 else draft.parameter(value.shape[-1:])
        return _reduced(draft, draft.binary(value, other, ("mul", "gate", "maximum")))
    if after < 0.8:
        value = draft.binary(value, draft.parameter(value.shape[-1:], 1.0), ("mul", "add"))
        return draft.chain(value, draft.rng.randint(0, 2))
    return value


def gemm(draft: Draft) -> Value:
    """A linear layer and what can be fused behind it."""
    value = draft.input(MATRIX)
    if draft.rng.random() < 0.25:
        value = draft.unary(value)
    bias = draft.rng.random() < 0.7
    layer = draft.module(f"nn.Linear(WIDTH, OUT, bias={bias})")
    name = "linear" if bias else "linear_no_bias"
    value = draft.set(
        f"{layer}({value.name})", value, f"{name}({value.expression})", shape=("BATCH", "OUT"), negative=True,
        grown=False,
    )  # fmt: skip
    value = draft.chain(value, draft.rng.randint(1, 4))
    drawn = draft.rng.random()
    if drawn < 0.3:
        return _reduced(draft, value)
    if drawn < 0.5:
        return draft.chain(_normalised(draft, value), draft.rng.randint(0, 2))
    return value


def conv(draft: Draft) -> Value:
    """One to three convolutions with normalisation, activation, pooling, a residual."""
    value = draft.input(IMAGE)
    channels = "CHANNELS"
    for _ in range(draft.rng.randint(1, 3)):
        value, channels = _conv_layer(draft, value, channels)
    if draft.rng.random() < 0.3:
        value = draft.set(
            f"torch.mean({value.name}, dim=(2, 3))", value, f"global_mean({value.expression})", shape=value.shape[:2]
        )
        return draft.unary(value, ACTIVATIONS) if draft.rng.random() < 0.5 else value
    return value


def _conv_layer(draft: Draft, value: Value, channels: str) -> tuple[Value, str]:
    rng = draft.rng
    kind = rng.choice(("conv3", "conv3", "conv1", "depthwise", "grouped", "strided", "transposed"))
    out = channels if kind in ("depthwise",) else "OUT"
    code = {
        "conv3": f"nn.Conv2d({channels}, {out}, 3, padding=1)",
        "conv1": f"nn.Conv2d({channels}, {out}, 1)",
        "depthwise": f"nn.Conv2d({channels}, {out}, 3, padding=1, groups={channels})",
        "grouped": f"nn.Conv2d({channels}, {out}, 3, padding=1, groups=4)",
        "strided": f"nn.Conv2d({channels}, {out}, 3, stride=2, padding=1)",
        "transposed": f"nn.ConvTranspose2d({channels}, {out}, 3, padding=1)",
    }[kind]
    before = value
    layer = draft.module(code)
    shape = (value.shape[0], out, *value.shape[2:])
    value = draft.set(
        f"{layer}({value.name})", value, f"{kind}({value.expression})", shape=shape, negative=True, grown=False
    )
    after = rng.choice(("batch_norm", "batch_norm", "group_norm", "instance_norm", "bias", "scale", ""))
    x = value.name
    if after == "batch_norm":
        value = draft.set(f"{draft.module(f'nn.BatchNorm2d({out})')}({x})", value, f"batch_norm({value.expression})")
    elif after == "group_norm":
        value = draft.set(f"{draft.module(f'nn.GroupNorm(4, {out})')}({x})", value, f"group_norm({value.expression})")
    elif after == "instance_norm":
        layer = draft.module(f"nn.InstanceNorm2d({out}, affine=True)")
        value = draft.set(f"{layer}({x})", value, f"instance_norm({value.expression})")
    elif after:
        op = "add" if after == "bias" else "mul"
        value = draft.binary(value, draft.parameter((out, "1", "1"), 0.0 if after == "bias" else 1.0), (op,))
    if rng.random() < 0.85:
        value = draft.unary(value, ACTIVATIONS)
    if kind in ("conv3", "conv1", "depthwise", "grouped", "transposed") and out == channels and rng.random() < 0.5:
        value = draft.binary(value, before, ("add",))
    elif rng.random() < 0.25:
        pool = rng.choice(("max", "avg"))
        value = draft.set(
            f"F.{pool}_pool2d({value.name}, 3, stride=1, padding=1)", value, f"{pool}_pool({value.expression})"
        )
    return value, out


def _batch_norm_mode(draft: Draft) -> str | None:
    """Train and eval in turn where BatchNorm makes them differ."""
    if any("BatchNorm" in line for line in draft.constructor):
        return draft.rng.choice(("train", "eval"))
    return None


def mlp(draft: Draft) -> Value:
    """Blocks of linear layers: stacked, gated, with a residual and a norm."""
    value = draft.input(MATRIX)
    start = value
    if draft.rng.random() < 0.6:
        value = _normalised(draft, value)
    if draft.rng.random() < 0.5:
        up, gate, down = (
            draft.module(f"nn.Linear({a}, {b})") for a, b in (("WIDTH", "OUT"),) * 2 + (("OUT", "WIDTH"),)
        )
        gated = draft.set(f"{gate}({value.name})", value, f"linear({value.expression})", shape=("BATCH", "OUT"))
        gated = draft.unary(gated, ACTIVATIONS)
        other = draft.set(f"{up}({value.name})", gated, f"linear({value.expression})", negative=True)
        value = draft.binary(gated, other, ("mul",))
        value = draft.set(
            f"{down}({value.name})", value, f"linear({value.expression})", shape=MATRIX, negative=True, grown=False
        )
    else:
        at = "WIDTH"
        for width in [*(["OUT"] * draft.rng.randint(1, 2)), "WIDTH"]:
            layer = draft.module(f"nn.Linear({at}, {width})")
            value = draft.set(
                f"{layer}({value.name})", value, f"linear({value.expression})", shape=("BATCH", width), negative=True,
                grown=False,
            )  # fmt: skip
            if draft.rng.random() < 0.85:
                value = draft.unary(value, ACTIVATIONS)
            at = width
    if draft.rng.random() < 0.6:
        value = draft.binary(value, start, ("add",))
    return draft.chain(value, draft.rng.randint(0, 2), inputs=1)


def attention(draft: Draft) -> Value:
    """Self-attention in several spellings, with what surrounds it in a transformer block."""
    rng = draft.rng
    value = start = draft.input(TOKENS)
    if rng.random() < 0.6:
        value = _normalised(draft, value)
    heads = rng.choice(("1", "HEADS"))
    projection = draft.module("nn.Linear(DIM, 3 * DIM)")
    joined = draft.set(f"{projection}({value.name})", value, f"qkv({value.expression})", grown=False, negative=True)
    names = []
    for part in range(3):
        code = f"{joined.name}.chunk(3, dim=-1)[{part}].reshape(BATCH, LENGTH, {heads}, DIM // {heads}).transpose(1, 2)"
        names.append(draft.set(code, joined).name)
    q, k, v = names
    kind = rng.choice(("sdpa", "explicit", "explicit_bias", "relu_attention", "cosine"))
    causal = rng.random() < 0.5 and kind in ("sdpa", "explicit")
    expression = f"{kind}{'_causal' if causal else ''}_{'single' if heads == '1' else 'heads'}({joined.expression})"
    if kind == "cosine":
        q, k = (draft.set(f"F.normalize({name}, dim=-1) * 3.0", joined).name for name in (q, k))
    if kind == "sdpa":
        mixed = draft.set(f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={causal})", joined)
    else:
        scores = draft.set(f"{q} @ {k}.transpose(-2, -1) * (DIM // {heads}) ** -0.5", joined)
        if kind == "explicit_bias":
            scores = draft.set(f"{scores.name} + {draft.parameter(('LENGTH', 'LENGTH')).name}", scores)
        if causal:
            mask = f"torch.ones(LENGTH, LENGTH, device={scores.name}.device).triu(1).bool()"
            scores = draft.set(f"{scores.name}.masked_fill({mask}, float('-inf'))", scores)
        act = "torch.relu({}) / LENGTH" if kind == "relu_attention" else "F.softmax({}, dim=-1)"
        mixed = draft.set(f"{act.format(scores.name)} @ {v}", scores)
    value = draft.set(f"{mixed.name}.transpose(1, 2).reshape(BATCH, LENGTH, DIM)", mixed, expression, shape=TOKENS)
    if rng.random() < 0.6:
        value = draft.set(f"{draft.module('nn.Linear(DIM, DIM)')}({value.name})", value, f"linear({value.expression})")
    if rng.random() < 0.6:
        value = draft.binary(value, start, ("add",))
    return _normalised(draft, value) if rng.random() < 0.3 else draft.chain(value, rng.randint(0, 2), inputs=1)


def host(draft: Draft) -> Value:
    """Inputs that start in host memory: ``forward`` copies them itself."""
    value = draft.input(ROWS)
    value = draft.set(f"{value.name}.to(self.p0.device)", value, f"copied({value.expression})")
    value = draft.binary(value, draft.parameter(("COLS",), 1.0), ("mul",))
    value = draft.chain(value, draft.rng.randint(1, 3), inputs=1)
    return _reduced(draft, value) if draft.rng.random() < 0.5 else value


FAMILIES = (
    Family("elementwise", 0.21, elementwise, _row_sizes),
    Family("reduction", 0.16, reduction, _row_sizes),
    Family("norm", 0.13, norm, _row_sizes),
    Family("softmax", 0.10, softmax, _row_sizes),
    Family("gemm", 0.13, gemm, _matrix_sizes),
    Family("conv", 0.14, conv, _image_sizes, mode=_batch_norm_mode),
    Family("mlp", 0.06, mlp, _matrix_sizes),
    Family("attention", 0.05, attention, _token_sizes),
    Family("host", 0.02, host, _row_sizes, residence="host"),
)
