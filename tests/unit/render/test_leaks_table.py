import csv
import io

import pytest
import rendered_leaks as leaks

from tensorlens.render import csv_text, spreadsheet_text, to_pandas


def rows_of(kind: str) -> list[dict[str, str]]:
    text = csv_text(leaks.KINDS[kind]())
    assert text == leaks.KINDS[kind]().to_csv()
    return list(csv.DictReader(io.StringIO(text, newline="")))


def test_a_row_per_leak_with_all_that_is_known() -> None:
    assert rows_of("leak") == [
        {
            "kind": "leak",
            "certainty": "certain",
            "device": "cpu",
            "role": "activation",
            "tensors_per_step": "1.0",
            "bytes_per_step": "12292.0",
            "born": "train.py:12 in Trainer.step",
            "source": leaks.LOSSES.source.rstrip(),
            "path": leaks.LOSSES.path,
            "other_paths": "log (closure) -> dict['loss']",
            "reason": leaks.LOSSES.reason,
            "advice": leaks.LOSSES.advice,
            "example": "trainer.history[7]",
            "shape": "()",
            "dtype": "float32",
            "nbytes": "4",
            "storage_nbytes": "4",
            "grad_fn": "MeanBackward0",
            "age": "1",
            "below": "12288",
            "below_tensors": "3",
        }
    ]


def test_unknown_cells_are_empty() -> None:
    row = rows_of("several")[1]
    filled = {name: text for name, text in row.items() if text}
    assert filled == {
        "kind": "leak",
        "certainty": "likely",
        "device": "cuda:0",
        "role": "other",
        "tensors_per_step": "1.5",
        "bytes_per_step": "1536.0",
        "reason": leaks.UNSEEN.reason,
    }


@pytest.mark.parametrize("kind", leaks.KINDS)
def test_pandas_has_the_rows_of_the_csv(kind: str) -> None:
    pandas = pytest.importorskip("pandas")
    frame = to_pandas(leaks.KINDS[kind]())
    rows = rows_of(kind)
    assert len(frame) == len(rows)
    assert frame["bytes_per_step"].dtype == "Float64"
    assert frame["below"].dtype == "Int64"
    for index, row in enumerate(rows):
        for name, text in row.items():
            value = frame[name][index]
            assert text == ("" if pandas.isna(value) else spreadsheet_text(str(value)))
