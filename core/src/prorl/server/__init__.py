"""The HTTP server: Litestar routes over the pipeline."""
