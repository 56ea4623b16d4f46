"""Options made from the fields of a settings class, so that a flag is never declared apart from its setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NoReturn, TypeVar, get_args, get_origin

import click
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from tickertape.settings import ENV_PREFIX, SettingsError

__all__ = ["USAGE_EXIT", "GroupedCommand", "given", "refuse", "settings_options"]

F = TypeVar("F", bound=Callable[..., Any])

USAGE_EXIT = 2
_HELP_COLUMN = 26


class GroupedCommand(click.Command):
    """Shows its options under the headings that the fields name."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in sorted(self.get_params(ctx), key=lambda param: not hasattr(param, "group")):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                groups.setdefault(getattr(param, "group", "Other"), []).append(record)
        for heading, records in groups.items():
            with formatter.section(heading):
                formatter.write_dl(records, col_max=_HELP_COLUMN)


class SettingOption(click.Option):
    """One setting as a flag. Its value stays None unless given, so that environment and file have their say."""

    def __init__(self, name: str, field: FieldInfo) -> None:
        flag = name.replace("_", "-")
        switch = field.annotation is bool
        table = get_origin(field.annotation) is dict
        super().__init__(
            [f"--{flag}/--no-{flag}" if switch else f"--{flag}", name],
            default=None,
            multiple=table,
            type=None if switch else _click_type(field),
            metavar=None if switch else _metavar(name, field),
            help=field.description,
        )
        extra = field.json_schema_extra
        self.group = str(extra["group"]) if isinstance(extra, dict) else "Options"
        self._flag = f"--{flag}"
        self._default_text = _default_text(field)

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        # "--no-x" is accepted for every switch; it is said where the default is on.
        is_on = self.is_flag and self._default_text.startswith(" [default: True")
        if self.is_flag:
            left = f"{self._flag}/--no-{self._flag[2:]}" if is_on else self._flag
        else:
            left = f"{self._flag} {self.make_metavar(ctx)}"
        return left, f"{self.help or ''}{self._default_text}"


def settings_options(
    of: type[BaseSettings], *, only: Sequence[str] = (), leave: Sequence[str] = ()
) -> Callable[[F], F]:
    """A decorator that gives a command one option per field of `of`: those in `only` (all when empty), but `leave`."""

    def decorate(command: F) -> F:
        options = [
            SettingOption(name, field)
            for name, field in of.model_fields.items()
            if (not only or name in only) and name not in leave
        ]
        # As click's own decorators do: collected bottom up, turned over when the command is made.
        command.__dict__.setdefault("__click_params__", []).extend(reversed(options))
        return command

    return decorate


def given(values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags that were on the command line."""
    return {name: value for name, value in values.items() if value is not None and value != ()}


def refuse(error: SettingsError) -> NoReturn:
    """Says what is wrong with the settings and ends with the exit status of wrong usage."""
    for line in error.lines:
        click.echo(f"tickertape: {line}", err=True)
    raise SystemExit(USAGE_EXIT)


def _click_type(field: FieldInfo) -> click.ParamType[Any] | None:
    if get_origin(field.annotation) is Literal:
        return click.Choice(get_args(field.annotation))
    return click.STRING  # pydantic parses it, with the same messages as for the environment and the file


def _metavar(name: str, field: FieldInfo) -> str:
    annotation = field.annotation
    if get_origin(annotation) is dict:
        return "KEY=VALUE"
    if name.endswith("_mbps"):
        return "MBPS"
    if get_origin(annotation) is Literal:
        return "CHOICE" if len("|".join(get_args(annotation))) > 40 else "|".join(get_args(annotation))
    kinds = {getattr(t, "__name__", "") for t in (annotation, *get_args(annotation))}
    number = "SECONDS" if name.endswith("_s") else "NUMBER"
    for kind, metavar in (("ByteSize", "SIZE"), ("int", "N"), ("float", number), ("SecretStr", "KEY")):
        if kind in kinds:
            return metavar
    if "Path" in kinds:
        return "DIR" if name.endswith(("dir", "store")) else "FILE"
    return {
        "host": "ADDRESS",
        "device": "DEVICE",
        "url": "URL",
        "cors_origins": "ORIGINS",
        "trusted_proxies": "NETWORKS",
    }.get(name, "NAMES" if "tuple" in kinds else "NAME")


def _default_text(field: FieldInfo) -> str:
    text = ""
    if get_origin(field.annotation) is Literal and len("|".join(get_args(field.annotation))) > 40:
        text = f" One of {', '.join(get_args(field.annotation))}."
    if field.default in (None, (), {}, False) or field.is_required() or "[default:" in (field.description or ""):
        return text
    size = getattr(field.default, "human_readable", None)
    return f"{text} [default: {size() if size else field.default}]"


def environment_note() -> str:
    """A sentence for the end of a help page."""
    return (
        f"Every option is a setting: {ENV_PREFIX}PORT in the environment, port in the file. "
        "A flag wins over the environment, that over the file."
    )
