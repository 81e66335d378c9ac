-- Smooth: the port of smooth.rs. Parameters and state are those of the shaper.
local smooth = smooth_rate
