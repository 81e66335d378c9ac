-- Token bucket: the twin of token_bucket.rs. Numbers and state are those of the level.
local token_bucket = level
