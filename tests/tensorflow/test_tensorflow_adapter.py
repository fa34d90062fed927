from tensorlens.frameworks.tensorflow import Adapter
from tests.adapter_checks import check_adapter


def test_adapter_has_what_it_names():
    check_adapter(Adapter())
