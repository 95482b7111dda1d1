import net, { type AddressInfo, type Socket } from 'node:net'
import { tcpUrl } from './environment.ts'

export type SilentProxy = {
  /** `databaseUrl` with the proxy's address in place of the server's. */
  url: string
  /**
   * Swallows from now on data on some of the connections, in both directions and permanently: no FIN and no RST either.
   * With `newToo`, new connections are accepted and swallowed too, until `restore`.
   */
  silence(which: 'all' | 'half' | 'one' | 'all but listening', newToo: boolean): void
  /** Lets new connections pass. */
  restore(): void
  /**
   * Swallows the answer of the next statement that `matches`, and all that follows on its connection. Resolves when that is
   * sent. `sent` are the bytes, and the texts of prepared statements.
   */
  loseAnswer(matches: (sent: string) => boolean): Promise<void>
  close(): Promise<void>
}

/** The message of PostgreSQL's protocol that prepares a named statement. */
const PARSE = /P[\s\S]{4}(\w+)\0([^\0]+)\0/g

type Pair = {
  inward: Socket
  outward: Socket
  silent: boolean
  listening: boolean
  /** Texts of the prepared statements by name. */
  prepared: Map<string, string>
}

/** Whether a statement claims messages of a queue (core/work/message-claims.ts). */
export const claimsMessages =
  (queue: string) =>
  (sent: string): boolean =>
    /update pgboss\.job_common j\s+set state = 'active'/.test(sent) &&
    sent.includes(`\0\0\0${String.fromCharCode(queue.length)}${queue}`)

/** Sits between processes and PostgreSQL, and forgets their connections as a firewall or a lost host does. */
export async function startSilentProxy(databaseUrl: string): Promise<SilentProxy> {
  const target = tcpUrl(databaseUrl)
  const pairs = new Set<Pair>()
  let swallowsNew = false
  const losses = new Map<(sent: string) => boolean, () => void>()
  const read = (pair: Pair, chunk: string) => {
    if (chunk.includes('\0muster-listen\0')) pair.listening = true
    for (const [, name, text] of chunk.matchAll(PARSE)) pair.prepared.set(name, text)
    if (losses.size === 0) return
    const texts = [...pair.prepared].flatMap(([name, text]) => (chunk.includes(`\0${name}\0`) ? text : []))
    const lost = [...losses].find(([matches]) => matches([chunk, ...texts].join('\n')))
    if (!lost) return
    const [matches, resolve] = lost
    pair.silent = true
    losses.delete(matches)
    resolve()
  }
  const server = net.createServer(inward => {
    const outward = net.connect(Number(target.port), target.hostname)
    const pair: Pair = { inward, outward, silent: swallowsNew, listening: false, prepared: new Map() }
    pairs.add(pair)
    const join = (from: Socket, to: Socket) => {
      from.on('data', chunk => {
        if (pair.silent) return
        to.write(chunk)
        if (from === inward) read(pair, chunk.toString('latin1'))
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
  const url = tcpUrl(databaseUrl)
  url.host = `127.0.0.1:${(server.address() as AddressInfo).port}`
  return {
    url: url.href,
    silence(which, newToo) {
      const open = [...pairs].filter(
        ({ silent, listening, inward }) =>
          !silent && !inward.destroyed && !(listening && which === 'all but listening'),
      )
      const count = { half: Math.ceil(open.length / 2), one: 1 }[which as string] ?? open.length
      for (let left = count; left > 0 && open.length > 0; left--)
        open.splice(Math.floor(Math.random() * open.length), 1)[0].silent = true
      swallowsNew = newToo
    },
    restore() {
      swallowsNew = false
    },
    loseAnswer: matches =>
      new Promise(resolve => {
        losses.set(matches, resolve)
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
