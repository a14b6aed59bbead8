"""Images from a folder of the user: what is there, how it is divided, and its pixels on disk."""

from .folder import Folder, FolderOptions, StoredSplit, read_folder

__all__ = ["Folder", "FolderOptions", "StoredSplit", "read_folder"]
