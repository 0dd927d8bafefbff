"""Text to tokens: readers, tokenisers, file formats, and the code of what tokens do not determine."""

from chainrule.text.readers import Piece, Texts, open_texts, text_of
from chainrule.text.tokenizers import Tokenizer, load_tokenizer, train_tokenizer

__all__ = ["Piece", "Texts", "Tokenizer", "load_tokenizer", "open_texts", "text_of", "train_tokenizer"]
