"""The decode model built on the ops: seats (bind), the model, generation above it, the small trained model."""
