import pytest
from made_logs import ENGINE, FUNCTIONAL, Made, user

from tensorlens.records import Context, Frame, SourceLine
from tensorlens.render import TextRenderer, file_content, html_page

LIBRARY = "/env/site-packages/transformers"
STEP, BACKWARD = user(10, "main"), user(11, "main")
TRAIN = Frame(f"{LIBRARY}/trainer.py", 1500, "Trainer.train", False)
LAYER = Frame(f"{LIBRARY}/bert/modeling_bert.py", 350, "BertLayer.forward", False)
ATTENTION = Frame(f"{LIBRARY}/bert/modeling_bert.py", 245, "BertSelfAttention.forward", False)
HELPER = Frame(f"{LIBRARY}/sdpa.py", 80, "sdpa_attention_forward", False)
LINEAR = Frame("/env/site-packages/torch/nn/modules/linear.py", 90, "Linear.forward", False)
FORWARD = (STEP, TRAIN, "layer", LAYER, "layer.self", ATTENTION, HELPER, FUNCTIONAL)


def model_line(*frames: Frame | str, context: Context | None = None) -> SourceLine | None:
    made = Made()
    made.alloc(8, made.stack(*frames), context)
    (resident,) = made.recording.peak().tensors
    return resident.model_line


def test_innermost_line_of_the_models_own_code() -> None:
    assert model_line(*FORWARD) == ATTENTION.line
    assert model_line(STEP, TRAIN, "layer", LAYER, "layer.fc", LINEAR, FUNCTIONAL) == LAYER.line
    assert model_line(STEP, TRAIN) is None
    assert model_line(STEP, "fc", LINEAR) is None


def test_user_code_inside_the_model() -> None:
    mine = user(5, "Head.forward", "/me/head.py")
    assert model_line(STEP, "layer", LAYER, "head", mine, FUNCTIONAL) is None
    # and a library's layer that it calls is the library's again
    assert model_line(STEP, "net", mine, "layer", LAYER, FUNCTIONAL) == LAYER.line


@pytest.mark.parametrize(
    ("path", "function", "is_model"),
    [
        ("/v/site-packages/torchvision/models/resnet.py", "ResNet.forward", True),
        ("/v/dist-packages/keras_hub/layers/x.py", "X.call", True),
        (r"C:\v\site-packages\timm\vit.py", "Vit.forward", True),
        ("/v/site-packages/torch/nn/modules/linear.py", "Linear.forward", False),
        ("/v/site-packages/keras/src/layers/core/dense.py", "Dense.call", False),
        ("/v/site-packages/timm/vit.py", "Vit.forward_features", False),
        ("/tmp/torchinductor_me/a/b.py", "Runner.call", False),
        ("/v/site-packages/accelerate/operations.py", "wrapped.<locals>.forward", False),
        ("/v/site-packages/timm/vit.py", "made.<locals>.Vit.forward", True),
    ],
)
def test_model_library_code(path, function, is_model) -> None:
    assert Frame(path, 1, function, False).model == is_model
    assert not Frame(path, 1, function, True).model


def two_levels() -> Made:
    """Forward keeps 800 B; backward takes 100 B for the node, and 40 B where it computes again."""
    made = Made()
    forward = made.stack(*FORWARD)
    made.alloc(800, forward, Context(op="aten::bmm", grad=True))
    node = Context(node="BmmBackward0", forward=forward)
    made.free(made.alloc(100, made.stack(STEP, TRAIN, ENGINE), node))
    again = made.stack(STEP, TRAIN, ENGINE, "layer", LAYER, FUNCTIONAL)
    made.alloc(40, again, Context(node="CheckpointFunctionBackward", forward=forward, grad=True))
    return made


def test_backward_goes_back_to_lines_of_the_model() -> None:
    recording = two_levels().recording
    (cost,) = recording.backward()
    assert (cost.line, cost.nbytes) == (STEP.line, 140)
    assert dict(cost.model_lines) == {ATTENTION.line: 100, LAYER.line: 40}
    peak = recording.peak()
    assert dict(peak.by_line) == {STEP.line: 900}
    assert dict(peak.by_model_line) == {(STEP.line, ATTENTION.line): 900}


def test_lines_of_the_model_stand_below_the_users() -> None:
    made = two_levels()
    made.log.sources = {"/me/train.py": [""] * 9 + ["trainer.train()"]}
    text = TextRenderer(width=110, encoding="utf-8").render(made.recording)
    assert "900 B  100.0 %  /me/train.py:10                                      trainer" in text
    assert "900 B  100.0 %    modeling_bert.py:245 in BertSelfAttention.forward\n" in text
    # of the block itself the innermost of both
    (row,) = [line for line in text.splitlines() if line.startswith("  layer.self: aten::bmm")]
    assert row.endswith("modeling_bert.py:245")
    _, backward = text.split("that caused it")
    kept = [line.split() for line in backward.splitlines() if "modeling_bert.py" in line]
    assert [line[:3] for line in kept] == [
        ["100", "B", "modeling_bert.py:245"],
        ["40", "B", "modeling_bert.py:350"],
    ]
    page = html_page(made.recording).replace("<wbr>", "")
    # by line and in backward, of the block, and what the script reads
    assert page.count(">modeling_bert.py:245 in BertSelfAttention.forward<") == 2


def test_both_lines_are_in_the_data() -> None:
    text = file_content(two_levels().recording, "json")
    assert '"model_line"' in text and '"by_model_line"' in text and '"model_lines"' in text


def test_a_narrow_page_leaves_out_the_age_before_a_name() -> None:
    made = Made()
    path = "model.bert.encoder.layer.3.attention.output"
    made.alloc(64, made.stack(STEP, path, FUNCTIONAL), Context(op="aten::native_layer_norm"))
    text = TextRenderer(width=70, encoding="utf-8").render(made.recording)
    assert "Left out to fit 70 characters: Age." in text
    assert "aten::native_layer_norm" in text
    wide = TextRenderer(width=120, encoding="utf-8").render(made.recording)
    assert "  Age  Line" in wide and "  Age  Line" not in text
