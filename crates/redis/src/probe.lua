-- Runs every command that a store needs, so that missing permissions and unsupported servers fail here.
-- KEYS[1]  optional: a key to write, read and delete

redis.call('TIME')
cmsgpack.unpack(cmsgpack.pack(1))
if KEYS[1] then
  redis.call('PSETEX', KEYS[1], 1000, '1')
  redis.call('GET', KEYS[1])
  redis.call('SETRANGE', KEYS[1], 0, '2')
  redis.call('PTTL', KEYS[1])
  redis.call('PERSIST', KEYS[1])
  redis.call('DEL', KEYS[1])
end
return 1
