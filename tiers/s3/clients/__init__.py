"""Client libraries behind one small seam; each module imports its own library and no other."""
