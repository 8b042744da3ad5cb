"""Settings: typed, validated, each with its origin."""
