"""How each engine is spoken to over HTTP: token ids in, token ids and logprobs out."""
