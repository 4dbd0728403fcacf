"""The project's own expert notes, Markdown files shipped with the package. Their format is in ``README.md`` here."""
