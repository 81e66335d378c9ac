-- Warm-up: the twin of warm_up.rs. Numbers and state are those of the shaper.
local warm_up = shaper
