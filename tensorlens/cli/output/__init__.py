"""Output of the verbs: messages, files, saved records shown."""
