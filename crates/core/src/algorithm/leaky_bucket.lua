-- Leaky bucket as a queue: the port of leaky_bucket.rs. Parameters and state are those of the level.
local leaky_bucket = level
