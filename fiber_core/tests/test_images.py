"""Names of images are read and made as engines and registries do."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fiber.exceptions import AmbiguousImageError
from fiber.images import Reference, file_of, repository_for

SUM = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"
ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


class TestReading:
    @pytest.mark.parametrize(
        "text,registry,repository,tag,digest",
        [
            ("python", None, "python", None, None),
            ("python:3.12-slim", None, "python", "3.12-slim", None),
            ("team/python", None, "team/python", None, None),
            ("localhost/a", "localhost", "a", None, None),
            ("localhost:5000/a:b", "localhost:5000", "a", "b", None),
            ("10.0.0.7:5000/a", "10.0.0.7:5000", "a", None, None),
            ("[::1]:5000/a", "[::1]:5000", "a", None, None),
            (f"{ECR}/team/a:1", ECR, "team/a", "1", None),
            (f"a@sha256:{SUM}", None, "a", None, f"sha256:{SUM}"),
            (f"host:5000/a:1@sha256:{SUM}", "host:5000", "a", "1", f"sha256:{SUM}"),
            # a host may have capitals, a repository not
            ("Registry/a", "Registry", "a", None, None),
            ("a__b/c--d/e.f", None, "a__b/c--d/e.f", None, None),
        ],
    )
    def test_the_parts_are_found_and_make_the_name_again(
        self, text, registry, repository, tag, digest
    ):
        found = Reference.parse(text)

        assert found == Reference(registry=registry, repository=repository, tag=tag, digest=digest)
        assert str(found) == text

    @pytest.mark.parametrize(
        "text,why",
        [
            ("", "names no repository"),
            ("host:5000/", "names no repository"),
            ("MyImage", "small letters: myimage"),
            ("a b", "'a b' is no part of a repository"),
            ("a//b", "'' is no part of a repository"),
            ("-a", "'-a' is no part"),
            ("a/b..c", "'b..c' is no part"),
            ("a:", "'' is no tag"),
            ("a:b:c", "'b:c' is no tag"),
            ("a:" + "t" * 129, "is no tag"),
            ("a:.b", "'.b' is no tag"),
            ("a@", "'' is no digest"),
            ("a@sha256:00", "'sha256:00' is no digest"),
            ("a@latest", "'latest' is no digest"),
            ("ho_st.org/a", "'ho_st.org' is no host"),
            ("host.org:port/a", "'host.org:port' is no host"),
            ("https://host/a", "'https:' is no host"),
            ("a" * 255, "longer than 255"),
        ],
    )
    def test_what_is_no_name_is_refused_with_what_is_wrong(self, text, why):
        with pytest.raises(ValueError, match=r"is no name of an image") as caught:
            Reference.parse(text)

        assert why in str(caught.value)

    def test_a_name_has_neither_tag_nor_digest(self):
        assert Reference.parse(f"{ECR}/a:1@sha256:{SUM}").name == f"{ECR}/a"

    @given(st.text(max_size=40))
    def test_any_text_is_read_or_refused(self, text):
        try:
            found = Reference.parse(text)
        except ValueError:
            return
        assert str(found) == text


class TestNamesOfFolders:
    @pytest.mark.parametrize(
        "folder,name",
        [
            ("train", "train"),
            ("My Project (2)", "my-project-2"),
            ("__init__", "init"),
            ("a.b_c", "a-b-c"),
            ("проект", "image"),
            ("-", "image"),
            ("x" * 200, "x" * 63),
            ("/", "image"),
        ],
    )
    def test_a_folder_names_a_repository(self, folder, name, tmp_path):
        assert repository_for(tmp_path / folder) == name

    @given(
        st.text(
            st.characters(exclude_categories=["Cs"], exclude_characters="/\0"),
            min_size=1,
            max_size=80,
        )
    )
    def test_any_folder_names_one(self, folder):
        name = repository_for(f"/home/{folder}/")

        assert Reference.parse(name).repository == name


class TestFiles:
    @pytest.mark.parametrize(
        "names,within,found",
        [
            (["Recipe"], "", "Recipe"),
            (["a.recipe"], "", "a.recipe"),
            (["Recipe", "a.recipe", "b.recipe"], "", "Recipe"),
            (["a.recipe", "b.recipe"], "b.recipe", "b.recipe"),
            (["other"], "", None),
        ],
    )
    def test_the_file_is_found_in_a_folder_or_named_itself(self, tmp_path, names, within, found):
        (tmp_path / "is.recipe").mkdir()
        for name in names:
            (tmp_path / name).touch()

        expected = None if found is None else tmp_path / found
        assert file_of(tmp_path / within, "Recipe", "*.recipe") == expected

    def test_several_are_an_error_that_names_them_and_how_to_choose(self, tmp_path):
        for name in ("b.recipe", "a.recipe"):
            (tmp_path / name).touch()
        with pytest.raises(AmbiguousImageError) as caught:
            file_of(tmp_path, "Recipe", "*.recipe")

        assert caught.value.candidates == ("a.recipe", "b.recipe")
        assert "a.recipe, b.recipe" in str(caught.value)
        assert "--image-file a.recipe" in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
