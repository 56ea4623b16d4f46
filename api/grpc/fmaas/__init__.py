"""`fmaas.GenerationService`: the text generation protocol of TGIS."""
