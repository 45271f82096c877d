"""The tables of names, against what vLLM has: an entry that no version needs any more should go."""

from __future__ import annotations

import pytest

from tests.configurations import FORMS, VERSIONS, form, table
from worker_vllm import env_names
from worker_vllm.configuration.arguments import Argument
from worker_vllm.configuration.translations import SPECULATIVE
from worker_vllm.configuration.unknown import known_names

SOMEWHERE: dict[str, Argument] = {
    argument.name: argument for version in VERSIONS for argument in table(version).arguments
}
EVERYWHERE = set.intersection(
    *({argument.name for argument in table(version).arguments} for version in VERSIONS)
)


@pytest.mark.parametrize("name", env_names.ALIASES)
def test_an_alias_is_for_an_argument_of_every_version(name: str) -> None:
    assert name in EVERYWHERE


@pytest.mark.parametrize(
    "name", sorted(env_names.ZERO_MEANS_UNSET | env_names.FORM_DEFAULTS.keys() | set(env_names.NO_PORT))
)
def test_a_rule_is_about_an_argument_of_some_version(name: str) -> None:
    assert name in SOMEWHERE


@pytest.mark.parametrize("name", env_names.DENIED)
def test_a_denied_name_is_one_of_an_argument(name: str) -> None:
    assert name.lower() in SOMEWHERE


@pytest.mark.parametrize("name", sorted(env_names.REMOVED.keys() | env_names.FORM_NOISE))
def test_a_removed_name_is_in_none_of_the_newer_versions(name: str) -> None:
    assert not any(name.lower() in table(version).by_name for version in ("0.32.0", "0.33.0"))


@pytest.mark.parametrize("name", sorted(env_names.REMOVED))
def test_what_replaces_a_removed_name_exists(name: str) -> None:
    words = (word.split("__")[0].split("=")[0] for word in env_names.REMOVED[name].replace(";", " ").split())
    advised = {word for word in words if word.isupper() and "_" in word}
    assert advised <= known_names(table()) | {"HF_HOME"}


@pytest.mark.parametrize("name", sorted(env_names.MISNOMERS))
def test_a_misnomer_is_no_name_and_stands_for_one(name: str) -> None:
    assert name not in known_names(table())
    assert env_names.MISNOMERS[name] in known_names(table())


def test_the_tables_do_not_contradict_each_other() -> None:
    kinds = [
        set(env_names.DENIED),
        set(env_names.SURROUNDINGS),
        set(env_names.REMOVED),
        set(env_names.FORM_NOISE),
        set(env_names.TRANSLATED),
        set(env_names.OWN),
        set(env_names.PLACES),
    ]
    assert sum(map(len, kinds)) == len(set.union(*kinds))
    assert SPECULATIVE.keys() <= env_names.TRANSLATED


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("version", VERSIONS)
def test_every_name_of_an_old_form_is_known(name: str, version: str) -> None:
    foreign = {variable for variable in form(name) if variable.startswith(env_names.FOREIGN_PREFIXES)}
    assert form(name).keys() - foreign <= known_names(table(version))


def test_no_argument_of_any_version_is_taken_for_other_software() -> None:
    assert not {argument.variable for argument in SOMEWHERE.values()} & env_names.FOREIGN
