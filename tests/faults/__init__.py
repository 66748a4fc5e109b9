"""Faults on real NIXL: what the caller sees, which pages are held, that other peers go on, that recovery is right."""
