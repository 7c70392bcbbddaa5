"""Memory: the state of operators, activations saved for the backward pass, and working memory."""
