import sys
from pathlib import Path

# snapshots made by hand
sys.path.append(str(Path(__file__).parents[1] / "records"))
