"""Provider options by provider and build or release: tables, a builder, a linter, a migrator."""
