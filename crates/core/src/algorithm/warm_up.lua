-- Warm-up: the port of warm_up.rs. Parameters and state are those of the shaper.
local warm_up = smooth_rate
