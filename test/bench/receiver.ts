import { createServer } from 'node:http'

/**
 * A receiver of deliveries in a separate process. Answers 200 immediately; sends its parent its port, on `report` the requests
 * received since `reset`, and after `each` every receipt as it happens. Times are milliseconds since 1970.
 */
let count = 0
let first = 0
let last = 0
let each = false

const server = createServer((request, response) => {
  request.on('data', () => {})
  request.on('end', () => {
    last = performance.timeOrigin + performance.now()
    if (count === 0) first = last
    count += 1
    response.end('ok')
    if (each) process.send?.({ at: last })
  })
})
server.keepAliveTimeout = 60_000
server.listen(0, '127.0.0.1', () => process.send?.({ port: (server.address() as { port: number }).port }))

process.on('message', message => {
  if (message === 'report') process.send?.({ count, first, last })
  if (message === 'each') each = true
  if (message === 'reset') {
    count = 0
    each = false
  }
})
process.on('disconnect', () => process.exit(0))
