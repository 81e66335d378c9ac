-- Whether the server lets a store count: its clock, msgpack, and all that is done with a key, where there is one.
-- KEYS[1]  a key of no meaning, gone afterwards

redis.call('TIME')
cmsgpack.unpack(cmsgpack.pack(1))
if KEYS[1] then
  redis.call('PSETEX', KEYS[1], 1000, '1')
  redis.call('GET', KEYS[1])
  redis.call('SETRANGE', KEYS[1], 0, '2')
  redis.call('PTTL', KEYS[1])
  redis.call('DEL', KEYS[1])
end
return 1
