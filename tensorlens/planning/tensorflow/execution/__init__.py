"""A graph run without data: what each operation takes of a device's memory, and until when."""
