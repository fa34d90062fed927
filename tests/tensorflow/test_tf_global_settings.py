"""Keras's policy of the process that asks holds in trials, unless an option says another one."""

import json

from tests import warm
from tests.cli.commands import python

STEP = """
import keras, numpy as np

def make_step():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(64), keras.layers.Dense(64)])
    model.compile("adam", "mse")
    x, y = np.ones((256, 8), "float32"), np.ones((256, 64), "float32")

    def step():
        model.train_on_batch(x, y)
        return {"float16": 16, "float32": 32, "bfloat16": 17}[model.layers[-1].compute_dtype]

    return step
"""
HEAD = """
import json, tensorlens, warm_trials
from tensorlens.planning import processes
processes.interpreter = lambda: warm_trials.INTERPRETER
"""
SET = 'keras.mixed_precision.set_global_policy("mixed_float16")\n'
OPTIONS = '{"a": {}, "f32": {"policy": "float32"}}'


def answer(folder, program, **modules):
    interpreter = warm.python(tensorflow=True)
    own = {"train": HEAD + program, "warm_trials": f"INTERPRETER = {interpreter}\n"}
    for name, text in {**own, **modules}.items():
        (folder / f"{name}.py").write_text(text)
    ended = python(folder, "train.py", interpreter=interpreter, TF_CPP_MIN_LOG_LEVEL="3")
    assert not ended.returncode, ended.stderr
    return json.loads(ended.stdout.splitlines()[-1])


def test_policy_of_the_main_script_holds_and_an_option_replaces_it(tmp_path):
    text = f"""{STEP}{SET}
found = tensorlens.compare(make_step, {OPTIONS}, repeats=1, warmup=0, steps=1)
kinds = [each.kind for each in tensorlens.suggest(make_step, top=9)]
print(json.dumps([found.outcomes[0].losses[0], found.outcomes[1].losses[0], "bf16" in kinds]))
"""
    # nobody is told to do what the program does already
    assert answer(tmp_path, text) == [16, 32, False]


def test_option_replaces_a_policy_that_an_imported_module_or_make_step_sets(tmp_path):
    within = STEP.replace("    model = ", f"    {SET}    model = ")
    program = f"""
found = [
    tensorlens.compare(f"{{name}}:make_step", {OPTIONS}, repeats=1, warmup=0, steps=1)
    for name in ("model", "within")
]
print(json.dumps([[each.losses[0] for each in of.outcomes] for of in found]))
"""
    assert answer(tmp_path, program, model=STEP + SET, within=within) == [[16, 32]] * 2
