"""The `prorl` command. One module per subcommand, each with its click command under the name `command`."""
