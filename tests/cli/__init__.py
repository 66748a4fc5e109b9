"""The command: what each subcommand prints, as JSON and for a person, and how it exits."""
