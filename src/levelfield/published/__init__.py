"""What the papers published: their tables, and the searches behind one of them."""
