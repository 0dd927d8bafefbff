"""Why a model gives a token its probability: one file per kind of model."""
