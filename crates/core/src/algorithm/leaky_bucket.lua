-- Leaky bucket as a queue: the twin of leaky_bucket.rs. Numbers and state are those of the level.
local leaky_bucket = level
