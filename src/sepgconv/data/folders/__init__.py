"""Images from a folder of the user: what is there, how it is divided, and its pixels on disk."""
