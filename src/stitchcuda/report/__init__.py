"""How results are shown to people. Nothing here decides anything."""
