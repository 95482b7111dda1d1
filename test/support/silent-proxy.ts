import net, { type AddressInfo, type Socket } from 'node:net'

export type SilentProxy = {
  /** `databaseUrl` with the proxy's address in place of the server's. */
  url: string
  /**
   * Swallows from now on what passes on some of the connections, in both directions and for good: no FIN and no RST either.
   * With `newToo`, new connections are accepted and swallowed too, until `restore`.
   */
  silence(which: 'all' | 'half' | 'one', newToo: boolean): void
  /** Lets new connections pass. */
  restore(): void
  /** Swallows the answer of the next claim of a queue, and all that follows on its connection. Resolves with the claim. */
  loseClaim(queue: string): Promise<void>
  close(): Promise<void>
}

/** A claim by its prepared statement (core/jobs/message-claims.ts). */
const CLAIM = /\0(turn|oldest)(_stately)?\0/

type Pair = { inward: Socket; outward: Socket; silent: boolean }

/** Stands between processes and PostgreSQL, and forgets their connections as a firewall or a lost host does. */
export async function startSilentProxy(databaseUrl: string): Promise<SilentProxy> {
  const target = new URL(databaseUrl)
  const pairs = new Set<Pair>()
  let swallowsNew = false
  const onClaim = new Map<string, () => void>()
  const server = net.createServer(inward => {
    const outward = net.connect(Number(target.port), target.hostname)
    const pair: Pair = { inward, outward, silent: swallowsNew }
    pairs.add(pair)
    const join = (from: Socket, to: Socket) => {
      from.on('data', chunk => {
        if (pair.silent) return
        to.write(chunk)
        if (onClaim.size === 0 || from !== inward) return
        const text = chunk.toString('latin1')
        const queue = CLAIM.test(text) ? [...onClaim.keys()].find(name => text.includes(name)) : undefined
        if (queue === undefined) return
        pair.silent = true
        onClaim.get(queue)?.()
        onClaim.delete(queue)
      })
      from.on('error', () => {})
      from.on('close', () => {
        if (pair.silent) return
        pairs.delete(pair)
        to.destroy()
      })
    }
    join(inward, outward)
    join(outward, inward)
  })
  await new Promise<void>(resolve => server.listen(0, '127.0.0.1', resolve))
  const url = new URL(databaseUrl)
  url.host = `127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    url: url.href,
    silence(which, newToo) {
      const open = [...pairs].filter(({ silent, inward }) => !silent && !inward.destroyed)
      const count = { all: open.length, half: Math.ceil(open.length / 2), one: 1 }[which]
      for (let left = count; left > 0 && open.length > 0; left--)
        open.splice(Math.floor(Math.random() * open.length), 1)[0].silent = true
      swallowsNew = newToo
    },
    restore() {
      swallowsNew = false
    },
    loseClaim: queue =>
      new Promise(resolve => {
        onClaim.set(queue, resolve)
      }),
    async close() {
      for (const { inward, outward } of pairs) {
        inward.destroy()
        outward.destroy()
      }
      await new Promise(resolve => server.close(resolve))
    },
  }
}
