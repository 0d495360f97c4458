"""What agents may call. A tool is an argument Struct, a text for the model, and one method (base.py)."""
