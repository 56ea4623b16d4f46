"""Writes docs/settings.md from the fields of Settings: `python docs/make_settings.py`. A test sees that it was done."""

from __future__ import annotations

from pathlib import Path

from tickertape.settings import ENV_PREFIX, Settings

HEAD = f"""# Settings

Every setting is a flag of `tickertape serve` (`--max-num-seqs 8`), an environment variable
(`{ENV_PREFIX}MAX_NUM_SEQS=8`) and a key of the TOML file named by `--config` (`max_num_seqs = 8`). A flag wins over the
environment, that over the file. Made by `python docs/make_settings.py` from `tickertape/settings.py`.
"""


def page() -> str:
    groups: dict[str, list[str]] = {}
    for name, field in Settings.model_fields.items():
        extra = field.json_schema_extra
        group = str(extra["group"]) if isinstance(extra, dict) else "Other"
        what = (field.description or "").partition(" [default: ")
        default = what[2].rstrip("]") if what[1] else shown(field.default)
        groups.setdefault(group, []).append(f"| `{name}` | {default} | {what[0]} |")
    tables = [f"\n## {group}\n\n| setting | default | |\n| --- | --- | --- |\n" + "\n".join(rows) + "\n"
              for group, rows in groups.items()]  # fmt: skip
    return HEAD + "".join(tables)


def shown(default: object) -> str:
    if default is None or default in ((), {}):
        return "none"
    size = getattr(default, "human_readable", None)
    text = size() if size is not None else str(default).lower() if isinstance(default, bool) else str(default)
    return f"`{text}`"


if __name__ == "__main__":
    (Path(__file__).parent / "settings.md").write_text(page(), encoding="utf-8")
