"""The contract suite: laws that every algorithm and every engine keeps, for ours and for anybody's."""
