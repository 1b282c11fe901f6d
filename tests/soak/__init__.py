"""Long life: one manager through everything that happens to it, and a model that knows better."""
