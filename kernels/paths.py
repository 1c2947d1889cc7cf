"""Where the clone lies, and what else of it the package reads."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DATA_DIR = ROOT / "book" / "data"
