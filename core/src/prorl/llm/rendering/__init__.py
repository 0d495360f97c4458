"""From messages to token ids, safely: the model's own template around bodies that cannot act as markup."""
