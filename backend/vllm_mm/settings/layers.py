"""The sources of the configuration in the terms of pydantic-settings, which merges and validates them."""

from collections.abc import Mapping
from typing import Any

from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource


class Layer(PydanticBaseSettingsSource):
    """A source that was read already: its nodes, which know where they stand, are what errors are told from."""

    def __init__(self, settings_cls: type[BaseSettings], values: Mapping[str, Any]) -> None:
        super().__init__(settings_cls)
        self._values = values

    def get_field_value(self, field: FieldInfo, field_name: str) -> tuple[Any, str, bool]:
        """The value of one key; nothing is decoded any more."""
        _ = field
        return self._values.get(field_name), field_name, False

    def __call__(self) -> dict[str, Any]:
        """All of it, the keys that no setting has too: they are errors, not to be passed over."""
        return dict(self._values)
