-- Clients of an endpoint for wrk: each sends one request after the other, and waits for the result of each.
wrk.method = "POST"
wrk.body = os.getenv("BODY")
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Authorization"] = "Bearer " .. os.getenv("TOKEN")

local clients
failures = 0 -- global, so that done() can read it: wrk runs that in another Lua state

function setup(thread)
  clients = thread
end

function response(status, _, body)
  if status ~= 201 or not body:find('"state":"completed"', 1, true) then
    failures = failures + 1
  end
end

function done(summary, latency)
  local errors = summary.errors
  local failed = clients:get("failures") + errors.connect + errors.read + errors.write + errors.timeout
  local row = '{"requests": %d, "seconds": %f, "p95_ms": %f, "failures": %d}\n'
  io.write(string.format(row, summary.requests, summary.duration / 1e6, latency:percentile(95) / 1e3, failed))
end
