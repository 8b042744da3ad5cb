"""What holds for every test of every distribution: it leaves nothing behind."""

pytest_plugins = ["hygiene", "engines"]
