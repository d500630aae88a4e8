"""The part that owns engine processes, their memory, and every byte that reaches them."""
