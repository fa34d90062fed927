"""Memory through OpenTelemetry and Prometheus, each with its own library."""

import pytest
import torch

KEPT = 1 << 20


def by_device(metrics, name):
    points = [
        point
        for resource in metrics.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        if metric.name == name
        for point in metric.data.data_points
    ]
    return {point.attributes["device"]: point.value for point in points}


def test_gauges_of_opentelemetry_follow_allocations():
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    from tensorlens.integrations.opentelemetry import instrument

    reader = export.InMemoryMetricReader()
    stop = instrument(sdk.MeterProvider([reader]))
    before = by_device(reader.get_metrics_data(), "tensorlens.memory.allocated")["cpu"]
    kept = torch.zeros(KEPT, dtype=torch.uint8)
    torch.zeros(2 * KEPT, dtype=torch.uint8)
    found = reader.get_metrics_data()
    assert by_device(found, "tensorlens.memory.allocated")["cpu"] == before + KEPT
    assert by_device(found, "tensorlens.memory.peak")["cpu"] == before + 3 * KEPT
    assert by_device(found, "tensorlens.memory.reserved")["cpu"] > KEPT
    # a peak is that since the collection before
    again = by_device(reader.get_metrics_data(), "tensorlens.memory.peak")["cpu"]
    assert again == before + KEPT
    stop()
    assert reader.get_metrics_data() is None
    assert kept.nbytes == KEPT


def test_memory_of_a_card_has_the_name_of_the_conventions(monkeypatch):
    export = pytest.importorskip("opentelemetry.sdk.metrics.export")
    sdk = pytest.importorskip("opentelemetry.sdk.metrics")
    from tensorlens.integrations import opentelemetry
    from tensorlens.lines import DeviceLevel

    levels = [DeviceLevel("cpu", 1, 2, 3), DeviceLevel("cuda:1", 10, 20, 30)]
    monkeypatch.setattr(opentelemetry.LevelReader, "read", lambda self: levels)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    reader = export.InMemoryMetricReader()
    opentelemetry.instrument(sdk.MeterProvider([reader]))
    found = {
        metric.name: [(dict(each.attributes), each.value) for each in metric.data.data_points]
        for resource in reader.get_metrics_data().resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
    }
    assert found["hw.gpu.memory.usage"] == [({"hw.id": "cuda:1", "hw.type": "gpu"}, 30)]
    assert found["tensorlens.memory.peak"] == [
        ({"device": "cpu", "rank": 3}, 2),
        ({"device": "cuda:1", "rank": 3}, 20),
    ]


def test_a_textfile_of_prometheus_has_the_bytes_of_each_device(tmp_path, monkeypatch):
    parser = pytest.importorskip("prometheus_client.parser")
    from tensorlens.integrations.prometheus import MemoryCollector, write_textfile

    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    collector, path = MemoryCollector(), tmp_path / "train.prom"

    def read():
        write_textfile(path, collector)
        families = parser.text_string_to_metric_families(path.read_text("utf-8"))
        samples = [sample for family in families for sample in family.samples]
        assert {sample.labels["rank"] for sample in samples} == {"3"}
        return {each.name: each.value for each in samples if each.labels["device"] == "cpu"}

    before = read()["tensorlens_memory_allocated_bytes"]
    kept = torch.zeros(KEPT, dtype=torch.uint8)
    torch.zeros(2 * KEPT, dtype=torch.uint8)
    after = read()
    assert after["tensorlens_memory_allocated_bytes"] == before + KEPT
    assert after["tensorlens_memory_peak_bytes"] == before + 3 * KEPT
    assert kept.nbytes == KEPT
    assert [each.name for each in tmp_path.iterdir()] == ["train.prom"]


def test_a_textfile_that_cannot_be_written_gets_one_line(tmp_path, capsys):
    pytest.importorskip("prometheus_client")
    from tensorlens.integrations.prometheus import write_textfile

    path = tmp_path / "none" / "train.prom"
    write_textfile(path)
    write_textfile(path)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"tensorlens: {path} was not written: FileNotFoundError")
