-- Token bucket: the port of token_bucket.rs. Parameters and state are those of the level.
local token_bucket = level
