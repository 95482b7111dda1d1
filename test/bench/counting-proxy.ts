import net from 'node:net'
import { tcpUrl } from '../support/environment.ts'

/** What clients sent through the proxy since the last `take`: how often each statement was sent, the most frequent first. */
type CountingProxy = {
  /** `url` with the proxy's address in place of the server's. */
  url: string
  take(): { statement: string; count: number }[]
  /** How often clients waited for the server so far. */
  readonly trips: number
  close(): void
}

/** Sits between a program and PostgreSQL, and counts statements as they are on the wire: with every driver and pool. */
export async function startCountingProxy(databaseUrl: string): Promise<CountingProxy> {
  const target = tcpUrl(databaseUrl)
  const counts = new Map<string, number>()
  const sockets = new Set<net.Socket>()
  const count = (text: string) => {
    const statement = text.replaceAll(/\s+/g, ' ').trim()
    counts.set(statement, (counts.get(statement) ?? 0) + 1)
  }
  let trips = 0
  const onTrip = () => void trips++
  const server = net.createServer(client => {
    const upstream = net.connect(Number(target.port), target.hostname)
    const read = reader(count, onTrip)
    client.on('data', read)
    client.pipe(upstream).pipe(client)
    for (const [one, other] of [
      [client, upstream],
      [upstream, client],
    ]) {
      sockets.add(one)
      one.on('error', () => other.destroy())
      one.on('close', () => {
        sockets.delete(one)
        other.destroy()
      })
    }
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const url = tcpUrl(databaseUrl)
  url.hostname = '127.0.0.1'
  url.port = String((server.address() as net.AddressInfo).port)
  return {
    url: url.href,
    take() {
      const taken = [...counts].map(([statement, count]) => ({ statement, count }))
      counts.clear()
      return taken.sort((one, other) => other.count - one.count)
    },
    get trips() {
      return trips
    },
    close() {
      server.close()
      for (const socket of sockets) socket.destroy()
    },
  }
}

/**
 * Reads the messages of one client: Query, and Execute with the text that its portal was parsed from. The server answers Query and
 * Sync.
 */
function reader(count: (text: string) => void, onTrip: () => void): (chunk: Buffer) => void {
  let rest: Buffer = Buffer.alloc(0)
  let started = false
  let bound = ''
  const prepared = new Map<string, string>()
  const strings = (body: Buffer) => body.toString('latin1').split('\0', 2)
  const message = (type: string, body: Buffer) => {
    if (type === 'Q') count(body.toString('utf8', 0, body.length - 1))
    if (type === 'P') prepared.set(...(strings(body) as [string, string]))
    if (type === 'B') bound = prepared.get(strings(body)[1]) ?? ''
    if (type === 'E') count(bound)
    if (type === 'Q' || type === 'S') onTrip()
  }
  return chunk => {
    rest = rest.length > 0 ? Buffer.concat([rest, chunk]) : chunk
    for (;;) {
      // The first message of a connection has no type.
      const head = started ? 1 : 0
      if (rest.length < head + 4) return
      const end = head + rest.readInt32BE(head)
      if (rest.length < end) return
      if (started) message(String.fromCharCode(rest[0]), rest.subarray(5, end))
      started = true
      rest = rest.subarray(end)
    }
  }
}
