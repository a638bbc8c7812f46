"""Commands of sandboxes as callers see them: output to many, input, signals, and their end."""
