"""Programs that show what the package can do. They come with the sources, and not with the package."""
